"""What was decided, whole: the executor has nothing left to choose."""

from collections.abc import Mapping
from dataclasses import dataclass

from courtier.domain.allocations import Allocation
from courtier.domain.reasons import Reason
from courtier.domain.snapshot import ClassKey


@dataclass(frozen=True, slots=True)
class Place:
    """Start this job there. spawn is the version of its row that was decided on: if it moved, the action is dropped."""

    job_id: int
    spawn: int
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class Plan:
    """placements in order; for each class that still waits, the reason of its first job;
    more: heads ran out before room did, decide again after applying."""

    placements: tuple[Place, ...]
    refusals: Mapping[ClassKey, Reason]
    more: bool
