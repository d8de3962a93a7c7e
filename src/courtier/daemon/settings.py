"""Every setting of a broker: one field, its default and why. Read from `settings.toml` in the home and `up --set`.

No file is needed. An unknown name or a wrong type is refused with the list of what there is.
"""

import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

# setting -> (default, what it is). Durations in ms, sizes in bytes.
SETTINGS: dict[str, tuple[int, str]] = {
    "spawn_deadline_ms": (10_000, "a start that no supervisor took up by then is fenced off and asked for anew"),
    "start_backoff_ms": (1_000, "pause after the machine refused a start, doubled each time"),
    "starts_refused_max": (5, "refused starts after which a job fails"),
    "sweep_ms": (5_000, "how often every job's processes are looked at without being told to"),
    "telemetry_ms": (1_000, "how often all GPUs are read"),
    "reclaim_read_ms": (20, "how often a GPU is read whose memory has to come back"),
    "reclaim_deadline_ms": (60_000, "a GPU whose memory is not back by then is set aside, with who holds it"),
    "gpu_answer_ms": (2_000, "a GPU that does not answer by then hangs; a start waits no longer for its reading"),
    "gpu_hot_celsius": (90, "from here on a GPU's health is degraded"),
    "external_ignored_bytes": (512 << 20, "GPU memory used outside Courtier that keeps nobody off, as a display's"),
    "store_retry_ms": (1_000, "pause before a step that the store refused is tried again"),
    "barrier_after_ms": (600_000, "a job that waited longer lets no later one take what it waits for"),
    "attach_ms": (30_000, "the client of `run` joins its job within this time, or the job is given up"),
    "log_bytes_max": (100 << 20, "cap of each log file of a job"),
    "array_size_max": (10_000, "jobs in one array"),
    "jobs_active_max": (200_000, "jobs that have not ended, in all"),
    "gpu_overuse_percent": (5, "how far over its declared memory a job on a shared GPU may go before it is stopped"),
    "user_jobs_active_max": (50_000, "jobs of one user that have not ended"),
    "watch_only": (0, "1: GPUs are read and their use is attributed, nothing is scheduled"),
    "user_gpus_max": (0, "GPUs that one user's jobs may hold at once, shared ones counted whole; 0: no limit"),
}
# The same for settings that are words.
WORD_SETTINGS: dict[str, tuple[str, str]] = {
    "admin_group": ("", "members of this group may do everything that root may; empty: root only"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The values in force; each field is an entry of SETTINGS."""

    spawn_deadline_ms: int = SETTINGS["spawn_deadline_ms"][0]
    start_backoff_ms: int = SETTINGS["start_backoff_ms"][0]
    starts_refused_max: int = SETTINGS["starts_refused_max"][0]
    sweep_ms: int = SETTINGS["sweep_ms"][0]
    telemetry_ms: int = SETTINGS["telemetry_ms"][0]
    reclaim_read_ms: int = SETTINGS["reclaim_read_ms"][0]
    reclaim_deadline_ms: int = SETTINGS["reclaim_deadline_ms"][0]
    gpu_answer_ms: int = SETTINGS["gpu_answer_ms"][0]
    gpu_hot_celsius: int = SETTINGS["gpu_hot_celsius"][0]
    external_ignored_bytes: int = SETTINGS["external_ignored_bytes"][0]
    store_retry_ms: int = SETTINGS["store_retry_ms"][0]
    barrier_after_ms: int = SETTINGS["barrier_after_ms"][0]
    attach_ms: int = SETTINGS["attach_ms"][0]
    log_bytes_max: int = SETTINGS["log_bytes_max"][0]
    array_size_max: int = SETTINGS["array_size_max"][0]
    jobs_active_max: int = SETTINGS["jobs_active_max"][0]
    gpu_overuse_percent: int = SETTINGS["gpu_overuse_percent"][0]
    user_jobs_active_max: int = SETTINGS["user_jobs_active_max"][0]
    watch_only: int = SETTINGS["watch_only"][0]
    user_gpus_max: int = SETTINGS["user_gpus_max"][0]
    admin_group: str = WORD_SETTINGS["admin_group"][0]


class SettingRefused(Exception):
    """A setting that is unknown or has a value of the wrong type."""


def load_settings(home: Path, overrides: dict[str, str]) -> Settings:
    """Defaults, then the file, then the command line. Raises SettingRefused."""
    values: dict[str, object] = {}
    path = home / "settings.toml"
    if path.exists():
        try:
            values.update(tomllib.loads(path.read_text()))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingRefused(f"{path} is not valid TOML: {error}") from error
    values.update(overrides)
    known = {field.name for field in fields(Settings)}
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise SettingRefused(f"no setting {name}: there are {', '.join(sorted(known))}")
        if name in WORD_SETTINGS:
            checked[name] = str(value)
            continue
        try:
            number = int(str(value))
        except ValueError:
            raise SettingRefused(f"setting {name} takes an integer, not {value!r}") from None
        if number < 0:
            raise SettingRefused(f"setting {name} can not be negative")
        checked[name] = number
    return replace(Settings(), **checked)
