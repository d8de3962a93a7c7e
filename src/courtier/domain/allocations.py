"""What a job was given, for as long as it holds it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A GPU, or the memory of one that was declared. memory_bytes is what the job may use of it."""

    uuid: str
    index: int
    model: str
    memory_bytes: int
    whole: bool
    partition: str | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """devices in the order the job sees them; boot_id and placed_ms say when it was given."""

    devices: tuple[DeviceShare, ...]
    cpus: int
    memory_bytes: int | None
    isolation: str
    isolation_reason: str | None
    boot_id: str
    placed_ms: int
    master_port: int | None = None
    enforcement: str | None = None
