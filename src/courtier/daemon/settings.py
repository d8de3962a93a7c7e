"""Every setting of a broker: one field, its default and why. Read from `settings.toml` in the home and `up --set`.

No file is needed. An unknown name or a wrong type is refused with the list of what there is.
"""

import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """Durations in ms, sizes in bytes; the reference page says the same in words."""

    spawn_deadline_ms: int = 10_000
    start_backoff_ms: int = 1_000
    starts_refused_max: int = 5
    sweep_ms: int = 5_000
    telemetry_ms: int = 1_000
    reclaim_read_ms: int = 20
    store_retry_ms: int = 1_000
    barrier_after_ms: int = 600_000
    log_bytes_max: int = 100 << 20
    array_size_max: int = 10_000
    jobs_active_max: int = 200_000
    gpu_overuse_percent: int = 5


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
    checked: dict[str, int] = {}
    for name, value in values.items():
        if name not in known:
            raise SettingRefused(f"no setting {name}: there are {', '.join(sorted(known))}")
        try:
            number = int(str(value))
        except ValueError:
            raise SettingRefused(f"setting {name} takes an integer, not {value!r}") from None
        if number < 0:
            raise SettingRefused(f"setting {name} can not be negative")
        checked[name] = number
    return replace(Settings(), **checked)
