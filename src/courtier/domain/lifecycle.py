"""The one table of a job's states and the changes between them.

Every change of a job's state passes `check_change`; what is not in the table cannot happen.
Must never know why a change is made.
"""

from enum import StrEnum


class JobState(StrEnum):
    """Where a job stands. `code` is the two-letter name that Slurm users read."""

    PENDING = "pending"
    HELD = "held"
    STARTING = "starting"
    RUNNING = "running"
    COMPLETING = "completing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    LOST = "lost"
    PREEMPTED = "preempted"

    @property
    def code(self) -> str:
        return STATE_CODES[self]


_S = JobState

STATE_CODES: dict[JobState, str] = {
    _S.PENDING: "PD",
    _S.HELD: "PD",
    _S.STARTING: "CF",
    _S.RUNNING: "R",
    _S.COMPLETING: "CG",
    _S.COMPLETED: "CD",
    _S.FAILED: "F",
    _S.CANCELLED: "CA",
    _S.TIMEOUT: "TO",
    _S.OUT_OF_MEMORY: "OOM",
    _S.LOST: "NF",
    _S.PREEMPTED: "PR",
}

ENDED = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLED, _S.TIMEOUT, _S.OUT_OF_MEMORY, _S.LOST, _S.PREEMPTED})
# States in which the job holds what its allocation names.
HOLDING = frozenset({_S.STARTING, _S.RUNNING, _S.COMPLETING})

# An attempt whose supervisor died may end from any holding state; a job that never ran may only be
# cancelled or found impossible to start.
CHANGES: dict[JobState, frozenset[JobState]] = {
    _S.PENDING: frozenset({_S.HELD, _S.STARTING, _S.CANCELLED, _S.FAILED}),
    _S.HELD: frozenset({_S.PENDING, _S.CANCELLED}),
    _S.STARTING: frozenset({_S.RUNNING, _S.COMPLETING, _S.PENDING, _S.LOST, _S.CANCELLED, _S.FAILED, _S.TIMEOUT}),
    _S.RUNNING: frozenset({_S.COMPLETING, _S.LOST, _S.CANCELLED}),
    _S.COMPLETING: ENDED,
    **{state: frozenset({_S.PENDING}) for state in ENDED},
}


class IllegalChange(Exception):
    """A change that the table does not have: a bug, never a user's mistake."""


def check_change(before: JobState, after: JobState) -> None:
    """Raises IllegalChange unless the table has before -> after (staying put is always legal)."""
    if before is not after and after not in CHANGES[before]:
        raise IllegalChange(f"{before} -> {after}")
