"""The picture that a decision reads: who waits, what is free. Values only; building one changes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from courtier.domain.devices import Device, DeviceMode
from courtier.domain.reasons import Reason
from courtier.domain.workloads import Request


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """A GPU as placement sees it. open: it may take work; memory_bytes_free is what may still be declared.

    external_bytes is memory that nobody of Courtier's holds, as far as it counts, and holder is its largest process.
    """

    device: Device
    open: bool
    reclaiming: bool
    mode: DeviceMode | None
    memory_bytes_free: int
    tenants: int
    quarantined: Reason | None = None
    external_bytes: int = 0
    holder: str = "nobody known"


@dataclass(frozen=True, slots=True)
class BoxRoom:
    """CPU and memory that no job holds."""

    cpus_total: int
    cpus_free: int
    memory_bytes_total: int
    memory_bytes_free: int


@dataclass(frozen=True, slots=True)
class ClassKey:
    """Jobs that no placement can tell apart. array_id is set where the array limits how many run, user where GPUs
    are asked for: one user's may be limited."""

    request: Request
    array_id: int | None
    isolation: str | None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class PendingJob:
    """One eligible job: the order is (-priority, order, id), smallest first. spawn is the row's version for a start."""

    priority: int
    order: int
    id: int
    spawn: int
    eligible_ms: int

    @property
    def rank(self) -> tuple[int, int, int]:
        return (-self.priority, self.order, self.id)


@dataclass(frozen=True, slots=True)
class PendingClass:
    """The first jobs of one class in order; count is how many wait in all; array_limit None: no limit."""

    key: ClassKey
    heads: tuple[PendingJob, ...]
    count: int
    array_running: int = 0
    array_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that schedule() may look at."""

    box: BoxRoom
    devices: tuple[DeviceRoom, ...]
    pending: tuple[PendingClass, ...]
    boot_id: str
    isolation: str
    isolation_reason: str | None
    enforcement: str
    ports_taken: frozenset[int]
    rooms_by_uuid: Mapping[str, DeviceRoom]
    user_gpus: Mapping[str, int]
