"""What comes in: what users ask for and what the world shows. Values only; a stimulus decides nothing.

A request carries a `token`, by which the shell finds who waits for the answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from courtier.domain.attempts import AttemptStatus, StopCause
from courtier.domain.devices import Reading
from courtier.domain.lifecycle import JobState
from courtier.domain.workloads import Dependency, JobSpec


@dataclass(frozen=True, slots=True)
class SubmitAsked:
    """array: indices, None for a single job. ended: outcome of dependencies that are no longer live.
    known_key_job: the job that already answers to this user's key, if the store knows one."""

    token: int
    spec: JobSpec
    payload: bytes
    priority: int = 0
    hold: bool = False
    array: tuple[int, ...] | None = None
    array_limit: int | None = None
    dependencies: tuple[Dependency, ...] = ()
    ended: Mapping[int, JobState] | None = None
    begin_ms: int | None = None
    retries: int = 0
    known_key_job: int | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Cancel, requeue or preempt, by cause. `by` is the user's name. targets are job ids, live or just loaded."""

    token: int
    targets: tuple[int, ...]
    cause: StopCause
    by: str
    skip_grace: bool = False


@dataclass(frozen=True, slots=True)
class SignalAsked:
    """Send a signal to running jobs, nothing more."""

    token: int
    targets: tuple[int, ...]
    number: int


@dataclass(frozen=True, slots=True)
class HoldAsked:
    token: int
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReleaseAsked:
    token: int
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RequeueAsked:
    token: int
    targets: tuple[int, ...]
    by: str


@dataclass(frozen=True, slots=True)
class RestoreAsked:
    """Take these GPUs back from quarantine."""

    token: int
    uuids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChangeAsked:
    """changes: priority, name, queue, comment, begin_ms, array_limit, and the request's fields."""

    token: int
    targets: tuple[int, ...]
    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AttemptReported:
    """The world shows an attempt so. May come twice, late, or for a job that is long gone."""

    status: AttemptStatus


@dataclass(frozen=True, slots=True)
class DevicesRead:
    """Readings of some GPUs."""

    readings: tuple[Reading, ...]


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed: deadlines are looked at."""


Request = SubmitAsked | StopAsked | SignalAsked | HoldAsked | ReleaseAsked | RequeueAsked | RestoreAsked | ChangeAsked
Stimulus = Request | AttemptReported | DevicesRead | Ticked
