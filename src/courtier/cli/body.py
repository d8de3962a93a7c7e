"""From flags to the body of a submit. Pure but for the environment, directory and clock that it is given.

Every mistake in a value is a Failure of exit code 2, with the flag's name.
"""

import argparse
import base64
import os
import re
import signal
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from courtier.cli.failure import Failure
from courtier.domain import units

_T = TypeVar("_T")
_SECRET = re.compile(
    rb"(SECRET|PASSWORD|PASSWD|CREDENTIAL|PRIVATE_KEY|API_?KEY|ACCESS_KEY|AUTH_KEY|(^|_)(TOKEN|PAT|PASS)($|_))",
    re.IGNORECASE,
)
_SIGNAL = re.compile(r"^(B:)?(\w+)(?:@(\d+))?$")


def _checked(flag: str, parse: Callable[[str], _T], text: str) -> _T:
    try:
        return parse(text)
    except ValueError as error:
        raise Failure("usage", f"{flag}: {error}", 2) from error


def submit_body(arguments: argparse.Namespace, *, now_ms: int, directory: bytes) -> dict[str, Any]:
    """Everything but the command and the environment. Absent flags are left to the broker's defaults."""
    body: dict[str, Any] = {
        "directory_base64": _encode(_directory(arguments, directory)),
        "name": arguments.name,
        "queue": arguments.queue,
        "class": arguments.job_class,
        "comment": arguments.comment,
        "split": arguments.split,
        "hold": arguments.hold,
        "key": arguments.key,
        "stdout": arguments.output,
        "stderr": arguments.error,
        "visible": arguments.visible,
        "isolation": arguments.isolation,
        "mig_profile": arguments.mig,
        "retries": arguments.retries,
        "dependencies": arguments.dependency.replace("?", ",").split(",") if arguments.dependency else None,
        "retry_on": arguments.retry_on.split(",") if arguments.retry_on else None,
        "labels": _labels(arguments.label),
        **_gpus(arguments),
        **_host(arguments),
        **_times(arguments, now_ms),
        **_simulated(arguments.sim_use),
    }
    if arguments.priority is not None or arguments.nice is not None:
        body["priority"] = (arguments.priority or 0) - (arguments.nice or 0)
    if arguments.array is not None:
        body["array"], body["array_limit"] = _checked("--array", units.parse_array, arguments.array)
    return {name: value for name, value in body.items() if value is not None}


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _directory(arguments: argparse.Namespace, directory: bytes) -> bytes:
    return os.path.join(directory, os.fsencode(arguments.chdir)) if arguments.chdir else directory


def _labels(labels: list[str] | None) -> dict[str, str] | None:
    if not labels:
        return None
    for label in labels:
        if "=" not in label:
            raise Failure("usage", f"--label: {label!r} is not name=value", 2)
    return dict(label.split("=", 1) for label in labels)


def _gpus(arguments: argparse.Namespace) -> dict[str, Any]:
    count: int | None = None
    model = arguments.gpu_model
    tasks = _tasks(arguments)
    for flag in ("gpus", "gres", "gpus_per_node", "gpus_per_task"):
        text = getattr(arguments, flag)
        if text is None:
            continue
        name = "--" + flag.replace("_", "-")
        if flag == "gres" and not text.startswith("gpu"):
            raise Failure("usage", f"--gres: {text!r} is not gpu[:MODEL]:COUNT", 2)
        if text.startswith("-"):
            raise Failure("usage", f"{name}: {text!r} is less than none", 2)
        number, named = _checked(name, units.parse_gpus, text)
        count = number * (tasks if flag == "gpus_per_task" else 1)
        model = named or model
        break
    memory = arguments.gpu_mem
    return {
        "gpus": count,
        "gpu_model": model,
        "gpu_memory_bytes": _checked("--gpu-mem", units.parse_size, memory) if memory is not None else None,
    }


def _tasks(arguments: argparse.Namespace) -> int:
    tasks: int = arguments.ntasks or arguments.ntasks_per_node or 1
    return tasks


def _host(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.nodes is not None and arguments.nodes not in ("1", "1-1"):
        raise Failure("usage", f"--nodes {arguments.nodes}: there is one machine here", 2)
    tasks = _tasks(arguments)
    cpus = (arguments.cpus if arguments.cpus is not None else 1) * tasks
    memory = None
    if arguments.mem is not None and arguments.mem != "0":
        memory = _checked("--mem", lambda text: units.parse_size(text, bare_unit="M"), arguments.mem)
    elif arguments.mem_per_cpu is not None:
        one = _checked("--mem-per-cpu", lambda text: units.parse_size(text, bare_unit="M"), arguments.mem_per_cpu)
        memory = one * cpus
    return {"cpus": cpus, "memory_bytes": memory, "ntasks": tasks if tasks != 1 else None}


def _times(arguments: argparse.Namespace, now_ms: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if arguments.time is not None:
        fields["time_limit_ms"] = _checked("--time", units.parse_duration, arguments.time)
    if arguments.grace is not None:
        fields["grace_ms"] = _checked("--grace", units.parse_grace, arguments.grace)
    if arguments.begin is not None:
        fields["begin_ms"] = _checked("--begin", lambda text: units.parse_instant(text, now_ms), arguments.begin)
    if arguments.signal is not None:
        fields.update(_signal(arguments.signal))
    return fields


def signal_number(text: str) -> int:
    """USR1, SIGUSR1 or 10. Raises ValueError."""
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 64:
        return int(text)
    try:
        return int(signal.Signals["SIG" + text.upper().removeprefix("SIG")])
    except KeyError:
        raise ValueError(f"{text!r} is not a signal: write USR1 or 10") from None


def _signal(text: str) -> dict[str, Any]:
    match = _SIGNAL.match(text)
    if match is None:
        raise Failure("usage", f"--signal: {text!r} is not [B:]USR1@300", 2)
    fields: dict[str, Any] = {
        "signal_number": _checked("--signal", signal_number, match.group(2)),
        "signal_leader_only": bool(match.group(1)),
    }
    if match.group(3) is not None:
        fields["signal_before_ms"] = int(match.group(3)) * 1000
    return fields


def _simulated(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    fields: dict[str, Any] = {}
    for word in text.split(","):
        if word.endswith("%") and word[:-1].isdigit():
            fields["utilization_percent_simulated"] = int(word[:-1])
        else:
            fields["memory_bytes_simulated"] = _checked("--sim-use", units.parse_size, word)
    return fields


def environment(
    arguments: argparse.Namespace, inherited: Iterable[tuple[bytes, bytes]]
) -> tuple[list[tuple[str, str]], list[bytes]]:
    """(pairs for the wire, names of secret-looking variables that were left out)."""
    own = dict(inherited)
    kept = {os.fsencode(name) for name in (arguments.keep_secret or [])}
    chosen = dict(own)
    export = arguments.export or "ALL"
    words = export.split(",")
    if words[0] == "NONE":
        chosen, words = {}, words[1:]
    elif words[0] == "ALL":
        words = words[1:]
    else:
        chosen = {}
    left_out = [name for name in chosen if _SECRET.search(name) and name not in kept]
    chosen = {name: value for name, value in chosen.items() if name not in left_out}
    for word in [*words, *_env_file(arguments.env_file), *(arguments.env or [])]:
        name, equals, value = os.fsencode(word).partition(b"=")
        if equals:
            chosen[name] = value
        elif name in own:
            chosen[name] = own[name]
    return [(_encode(name), _encode(value)) for name, value in sorted(chosen.items())], sorted(left_out)


def _env_file(path: str | None) -> list[str]:
    if path is None:
        return []
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.strip() for line in file]
    except OSError as error:
        raise Failure("usage", f"--env-file: {path}: {error.strerror}", 2) from error
    return [line for line in lines if line and not line.startswith("#")]
