"""From a submit on the wire to a specification: everything a user may have got wrong is said here, before a decision.

Raises `Refused` with a reason; never stores anything.
"""

import base64
import binascii
import hashlib
import os
from typing import TypeVar

from courtier.api.schema import SubmitBody
from courtier.daemon.payload import Payload, encode_payload
from courtier.domain.reasons import Reason, reason
from courtier.domain.workloads import (
    DependencyKind,
    JobSpec,
    Request,
    RetryCause,
    WorkloadClass,
)

# The kernel's limits of execve: one string, and all strings with their pointers (a quarter of the stack limit).
ARGUMENT_BYTES_MAX = 131_071
EXEC_BYTES_MAX = 1_900_000
# Signed 64 bit is what SQLite and most clients hold.
INTEGER_MAX = (1 << 62) - 1
PRIORITY_MAX = 1_000_000_000
DEFAULT_RETRY_ON = frozenset({RetryCause.FAILED, RetryCause.OOM, RetryCause.GPU_LOST, RetryCause.NODE_LOST})


_E = TypeVar("_E", RetryCause, WorkloadClass, DependencyKind)


class Refused(Exception):
    """The request cannot be taken; `why` says it with the numbers."""

    def __init__(self, why: Reason) -> None:
        super().__init__(why.text)
        self.why = why


def _wrong(problem: str) -> Refused:
    return Refused(reason("invalid_request", problem=problem))


def spec_of(body: SubmitBody, *, user: str, uid: int, gid: int | None) -> tuple[JobSpec, bytes]:
    """The specification and the payload to store with it."""
    command, script = _command(body)
    environment = _environment(body.environment_base64)
    _check_exec(command, environment)
    _check_amounts(body)
    payload_sha256, payload = encode_payload(Payload(environment, script))
    spec = JobSpec(
        name=_name(body, command),
        user=user,
        uid=uid,
        gid=gid,
        queue=body.queue,
        workload_class=_member(WorkloadClass, body.job_class, "class"),
        command=command,
        directory=_directory(body),
        request=_request(body),
        payload_sha256=payload_sha256,
        labels=tuple(sorted(body.labels.items())),
        comment=body.comment,
        script_sha256=hashlib.sha256(script).hexdigest() if script is not None else None,
        ntasks=body.ntasks,
        grace_ms=body.grace_ms,
        retry_on=_retry_on(body),
        key=body.key,
        stdout=_path_text(body.stdout, "stdout"),
        stderr=_path_text(body.stderr, "stderr"),
        append_logs=body.append_logs,
        visible=_visible(body.visible),
        isolation=body.isolation,
        interactive=body.interactive,
        terminal=body.terminal,
        umask=body.umask,
        signal_number=body.signal_number,
        signal_before_ms=body.signal_before_ms,
        signal_leader_only=body.signal_leader_only,
        memory_bytes_simulated=body.memory_bytes_simulated,
        utilization_percent_simulated=body.utilization_percent_simulated,
    )
    return spec, payload


def _bytes_of(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _wrong(f"{what} is not base64") from None


def _command(body: SubmitBody) -> tuple[tuple[bytes, ...], bytes | None]:
    given = [name for name in ("command", "command_base64", "script_base64") if getattr(body, name) is not None]
    if len(given) != 1:
        raise _wrong(f"exactly one of command, command_base64 and script_base64 is needed, got {given or 'none'}")
    if body.script_base64 is not None:
        script = _bytes_of(body.script_base64, "script_base64")
        words = [_encoded(word, "script argument") for word in body.script_arguments]
        return (os.fsencode(body.name or "script").replace(b"\0", b""), *words), script
    if body.command_base64 is not None:
        command = tuple(_bytes_of(word, "command_base64") for word in body.command_base64)
    else:
        command = tuple(_encoded(word, "command") for word in body.command or [])
    if not command or not command[0]:
        raise _wrong("the command is empty")
    return command, None


def _encoded(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _wrong(f"{what} is not valid Unicode: send it as command_base64") from None


def _environment(pairs: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    environment = []
    for name_base64, value_base64 in pairs:
        name, value = _bytes_of(name_base64, "environment name"), _bytes_of(value_base64, "environment value")
        if not name or b"=" in name or b"\0" in name or b"\0" in value:
            raise _wrong(f"environment variable {name!r}: a name has neither = nor NUL, a value no NUL")
        environment.append((name, value))
    return environment


def _check_exec(command: tuple[bytes, ...], environment: list[tuple[bytes, bytes]]) -> None:
    if any(b"\0" in word for word in command):
        raise _wrong("an argument contains a NUL byte, which no program can receive")
    longest = max(len(word) for word in command)
    if longest > ARGUMENT_BYTES_MAX:
        raise _wrong(f"an argument has {longest} bytes, the kernel takes {ARGUMENT_BYTES_MAX}")
    widest = max((len(name) + len(value) + 1 for name, value in environment), default=0)
    if widest > ARGUMENT_BYTES_MAX:
        raise _wrong(f"an environment variable has {widest} bytes, the kernel takes {ARGUMENT_BYTES_MAX}")
    total = sum(len(word) + 9 for word in command) + sum(len(n) + len(v) + 10 for n, v in environment)
    if total > EXEC_BYTES_MAX:
        raise _wrong(f"command and environment have {total} bytes, {EXEC_BYTES_MAX} is the most")


# field -> (least, most); None: INTEGER_MAX
_RANGES: dict[str, tuple[int, int | None]] = {
    "gpus": (0, 1_000_000),
    "gpu_memory_bytes": (1, None),
    "gpu_milli": (1, 1000),
    "cpus": (1, 1_000_000),
    "memory_bytes": (1, None),
    "ntasks": (1, 1_000_000),
    "time_limit_ms": (1, None),
    "grace_ms": (0, 86_400_000 * 7),
    "priority": (-PRIORITY_MAX, PRIORITY_MAX),
    "array_limit": (1, 1_000_000),
    "begin_ms": (0, None),
    "retries": (0, 1000),
    "umask": (0, 0o777),
    "signal_number": (1, 64),
    "signal_before_ms": (0, 86_400_000 * 365),
    "memory_bytes_simulated": (0, None),
    "utilization_percent_simulated": (0, 100),
}


def check_range(name: str, value: int | None) -> None:
    """Raises Refused when an amount on the wire lies outside what the field can mean."""
    least, most = _RANGES[name]
    if value is not None and not least <= value <= (INTEGER_MAX if most is None else most):
        raise _wrong(f"{name} {value} is not between {least} and {INTEGER_MAX if most is None else most}")


def _check_amounts(body: SubmitBody) -> None:
    for name in _RANGES:
        check_range(name, getattr(body, name))
    if body.split and body.gpu_memory_bytes is None:
        raise _wrong("split needs gpu_memory_bytes: the memory to spread over GPUs")
    if body.array is not None:
        if not body.array:
            raise _wrong("the array is empty")
        if any(not 0 <= index <= 1_000_000_000 for index in body.array):
            raise _wrong("an array index is not between 0 and 1000000000")
        if len(set(body.array)) != len(body.array):
            raise _wrong("the array names an index twice")
    for what, text in (("name", body.name), ("queue", body.queue), ("key", body.key), ("comment", body.comment)):
        if text is not None and ("\0" in text or len(text) > 4096):
            raise _wrong(f"{what} has a NUL or more than 4096 characters")


def _name(body: SubmitBody, command: tuple[bytes, ...]) -> str:
    if body.name:
        return body.name
    return os.path.basename(command[0]).decode("utf-8", "replace") or "job"


def _directory(body: SubmitBody) -> bytes:
    directory = _bytes_of(body.directory_base64, "directory_base64") if body.directory_base64 is not None else b"/"
    if not directory.startswith(b"/") or b"\0" in directory:
        raise _wrong("the directory is not an absolute path")
    return directory


def _request(body: SubmitBody) -> Request:
    gpus = body.gpus or 0
    if body.gpus is None and (body.gpu_model or body.split or body.gpu_memory_bytes or body.gpu_milli):
        gpus = 0 if body.split else 1
    return Request(
        gpus=gpus,
        gpu_model=body.gpu_model,
        gpu_memory_bytes=body.gpu_memory_bytes,
        gpu_milli=body.gpu_milli,
        mig_profile=body.mig_profile,
        split=body.split,
        cpus=body.cpus,
        memory_bytes=body.memory_bytes,
        time_limit_ms=body.time_limit_ms,
    )


def _retry_on(body: SubmitBody) -> frozenset[RetryCause]:
    if body.retry_on is None:
        return DEFAULT_RETRY_ON if body.retries else frozenset()
    return frozenset(_member(RetryCause, cause, "retry_on") for cause in body.retry_on)


def _member(kind: type[_E], value: str, what: str) -> _E:
    try:
        return kind(value)
    except ValueError:
        raise _wrong(f"{what} {value!r} is not one of {', '.join(member.value for member in kind)}") from None


def _visible(value: str) -> str:
    if value not in ("uuid", "index"):
        raise _wrong(f"visible {value!r} is neither uuid nor index")
    return value


def _path_text(pattern: str | None, what: str) -> str | None:
    if pattern is not None and (not pattern or "\0" in pattern):
        raise _wrong(f"{what} is not a path")
    return pattern


def dependencies_of(words: list[str]) -> tuple[tuple[DependencyKind, int], ...]:
    """("afterok:12", ...) as pairs; an id may be an array's."""
    found = []
    for word in words:
        kind, _, rest = word.partition(":")
        ids = rest.split(":") if rest else []
        if not ids:
            raise _wrong(f"dependency {word!r} is not KIND:JOB")
        for number in ids:
            if not number.isascii() or not number.isdigit() or len(number) > 18:
                raise _wrong(f"dependency {word!r}: {number!r} is not a job id")
            found.append((_member(DependencyKind, kind, "dependency"), int(number)))
    return tuple(found)
