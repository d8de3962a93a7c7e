"""What goes out, in the imperative. Carried out after the step is on disk; each may be repeated safely."""

from dataclasses import dataclass

from courtier.domain.attempts import AttemptKey, StopCause
from courtier.domain.workloads import Job


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Ask for a supervisor for this row's attempt and spawn."""

    job: Job


@dataclass(frozen=True, slots=True)
class StopAttempt:
    key: AttemptKey
    cause: StopCause
    grace_ms: int


@dataclass(frozen=True, slots=True)
class SignalAttempt:
    key: AttemptKey
    number: int


@dataclass(frozen=True, slots=True)
class LimitAttempt:
    key: AttemptKey
    time_limit_ms: int | None


@dataclass(frozen=True, slots=True)
class RevokeAttempt:
    """Nobody took the start up in time: make sure nobody can, and report what is there."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class CleanAttempt:
    """The end is recorded: forget the attempt's traces."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class ReadDevices:
    """Look at these GPUs now."""

    uuids: tuple[str, ...]


Command = StartAttempt | StopAttempt | SignalAttempt | LimitAttempt | RevokeAttempt | CleanAttempt | ReadDevices
