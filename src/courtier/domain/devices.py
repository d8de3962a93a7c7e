"""GPUs: what one is, how two are linked, and what a reading says. A GPU is known by its UUID."""

from dataclasses import dataclass
from enum import StrEnum


class DeviceState(StrEnum):
    FREE = "free"
    ALLOCATED = "allocated"
    RECLAIMING = "reclaiming"
    QUARANTINED = "quarantined"
    EXTERNAL = "external"


class DeviceMode(StrEnum):
    """How a GPU is divided while it has tenants; whole and shared never mix on one GPU."""

    WHOLE = "whole"
    SHARED = "shared"
    TIMESLICE = "timeslice"
    MPS = "mps"
    MIG = "mig"


# Bandwidth order of link kinds, best first; the names are those of `nvidia-smi topo -m`.
LINK_KINDS = ("nvlink", "pix", "pxb", "phb", "node", "sys")


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. memory_bytes_reserved is what the driver keeps; links are (uuid of the other, kind).

    minor is N of /dev/nvidiaN; cpus are those near the GPU, empty where nobody says. unified: the GPU has no memory
    of its own and shares the machine's. mig: it is divided in hardware, so that no process can use it whole.
    """

    uuid: str
    index: int
    model: str
    memory_bytes_total: int
    memory_bytes_reserved: int
    numa_node: int | None
    links: tuple[tuple[str, str], ...] = ()
    minor: int | None = None
    pci_bus_id: str | None = None
    cpus: tuple[int, ...] = ()
    unified: bool = False
    mig: bool = False

    @property
    def memory_bytes_usable(self) -> int:
        return self.memory_bytes_total - self.memory_bytes_reserved


@dataclass(frozen=True, slots=True)
class ExternalProcess:
    """A process outside Courtier that holds GPU memory; None where the driver does not say."""

    pid: int
    user: str | None
    command: str | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at one GPU. tenants are (job id, bytes) of Courtier's own jobs' processes.

    fault is what the look met instead of an answer ("gpu_lost", "gpu_hung", "gpu_reset_required"), None where the
    GPU answered; xids are the driver's error events since the look before. None in a metric: the driver does not say.
    """

    uuid: str
    at_ms: int
    memory_bytes_used: int | None
    utilization_percent: int | None
    temperature_celsius: int | None
    power_milliwatts: int | None
    tenants: tuple[tuple[int, int], ...] = ()
    external: tuple[ExternalProcess, ...] = ()
    fault: str | None = None
    xids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Box:
    """A machine and its GPUs. simulated is the specification ("8xA100-80GB"), None for real GPUs.

    driver is how the look for GPUs ended (adapters.nvml.discovery), driver_text the same for people; absent has a
    sentence for each GPU that could not be described.
    """

    hostname: str
    cpus: int
    memory_bytes: int
    devices: tuple[Device, ...]
    simulated: str | None = None
    isolation: str = "env"
    isolation_reason: str | None = None
    enforcement: str = "none"
    driver: str | None = None
    driver_text: str | None = None
    absent: tuple[str, ...] = ()
