"""Which GPUs this machine has, asked once before the broker starts, and if none, why and what to do.

Rule: the answer comes within the deadline, whatever the driver does, and what one GPU does leaves the others in. Must
never guess: a GPU that cannot be described is told of in `absent`, not invented.
"""

import re
import socket
import time
from dataclasses import dataclass, field
from enum import StrEnum

from courtier.adapters.nvml.messages import (
    Described,
    Discover,
    Done,
    Frames,
    Links,
    Started,
    decode_from_worker,
    frame,
    receive,
)
from courtier.adapters.nvml.names import model_name
from courtier.adapters.nvml.spawn import WorkerProcess
from courtier.domain.devices import Device
from courtier.domain.models import MODELS

# The part of the deadline that the worker may use; the rest is for the frames to arrive.
WORKER_SHARE_PERCENT = 80
KERNEL_VERSION_PATH = "/proc/driver/nvidia/version"
_KERNEL_VERSION = re.compile(r"Kernel Module.*?\s([0-9]+(?:\.[0-9]+)+)\s")
_LIBRARY_VERSION = re.compile(r"libnvidia-ml\.so\.([0-9]+(?:\.[0-9]+)+)$")


class DiscoveryStatus(StrEnum):
    """How the look for GPUs ended. Only OK has devices; it may have none."""

    OK = "ok"
    NO_LIBRARY = "no_library"
    STUB_LIBRARY = "stub_library"
    DRIVER_NOT_LOADED = "driver_not_loaded"
    DRIVER_LIBRARY_MISMATCH = "driver_library_mismatch"
    NO_PERMISSION = "no_permission"
    HUNG = "hung"
    FAILED = "failed"


_STATUS_OF_CODE = {
    4: DiscoveryStatus.NO_PERMISSION,
    9: DiscoveryStatus.DRIVER_NOT_LOADED,
    12: DiscoveryStatus.NO_LIBRARY,
    18: DiscoveryStatus.DRIVER_LIBRARY_MISMATCH,
}

_WAYS_OUT = {
    DiscoveryStatus.NO_LIBRARY: "No NVIDIA driver library (libnvidia-ml.so.1) was found. Install the NVIDIA driver; "
    "in a container, start it with the NVIDIA runtime (`--gpus all`).",
    DiscoveryStatus.STUB_LIBRARY: "{where} is the CUDA toolkit's stub, which is for linking only. Take its folder out "
    "of LD_LIBRARY_PATH and of /etc/ld.so.conf.d, so that the driver's own library is found.",
    DiscoveryStatus.DRIVER_NOT_LOADED: "The NVIDIA library {where} is there, but the kernel driver is not loaded. Try "
    "`modprobe nvidia`; after a kernel update the driver has to be built again (`dkms status`).",
    DiscoveryStatus.DRIVER_LIBRARY_MISMATCH: "NVIDIA driver and library do not match (kernel {kernel}, library "
    "{library}): an update replaced one of them. Reboot the machine, or unload and load the nvidia modules. Jobs that "
    "run are not affected.",
    DiscoveryStatus.NO_PERMISSION: "This user may not use the NVIDIA driver. Look at the rights of /dev/nvidiactl and "
    "/dev/nvidia*, or start the broker as root.",
}


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found. text is for people: what, and what to do. absent: a sentence for each GPU that has no Device."""

    status: DiscoveryStatus
    text: str
    driver_version: str | None = None
    devices: tuple[Device, ...] = ()
    absent: tuple[str, ...] = ()


@dataclass(slots=True)
class _Heard:
    """The worker's messages so far."""

    started: Started | None = None
    described: dict[int, Described] = field(default_factory=dict)
    links: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    done: bool = False
    ended: bool = False


def discover(timeout_s: float) -> Discovery:
    """Asks the driver, for at most `timeout_s` seconds. Blocks; raises nothing that the driver can cause."""
    until = time.monotonic() + timeout_s
    try:
        worker = WorkerProcess()
    except OSError as error:
        return Discovery(
            DiscoveryStatus.FAILED, f"The process that asks the NVIDIA driver could not be started: {error}"
        )
    try:
        heard = _listen(worker.connection, int(timeout_s * 10 * WORKER_SHARE_PERCENT), until)
    finally:
        worker.kill()
        worker.gone_within(1.0)
    return _concluded(heard, timeout_s)


def _listen(connection: socket.socket, budget_ms: int, until: float) -> _Heard:
    heard = _Heard()
    frames = Frames()
    try:
        connection.sendall(frame(Discover(budget_ms=budget_ms)))
        while not heard.done and (left := until - time.monotonic()) > 0:
            connection.settimeout(left)
            contents = receive(connection, frames)
            if contents is None:
                heard.ended = True
                break
            for content in contents:
                _note(heard, content)
    except TimeoutError:
        pass
    except (OSError, ValueError):
        heard.ended = True
    return heard


def _note(heard: _Heard, content: bytes) -> None:
    message = decode_from_worker(content)
    if isinstance(message, Started):
        heard.started = message
        heard.done = message.code != 0
    elif isinstance(message, Described):
        heard.described[message.index] = message
    elif isinstance(message, Links):
        heard.links[message.index] = message.links
    elif isinstance(message, Done):
        heard.done = True


def _concluded(heard: _Heard, timeout_s: float) -> Discovery:
    started = heard.started
    if started is None:
        if heard.ended:
            return Discovery(
                DiscoveryStatus.FAILED, "The NVIDIA library ended the process that loaded it; see `dmesg` for its end."
            )
        return Discovery(
            DiscoveryStatus.HUNG,
            f"The NVIDIA driver did not answer within {timeout_s:g} s. It may be stuck: look for Xid errors in "
            "`dmesg`; a reboot is the usual way out.",
        )
    if started.code != 0:
        return _refused(started)
    devices, absent = _devices(heard, started.gpus)
    many = "GPU" if len(devices) == 1 else "GPUs"
    text = f"{len(devices)} {many}, NVIDIA driver {started.driver_version or 'of unknown version'}."
    return Discovery(DiscoveryStatus.OK, " ".join([text, *absent]), started.driver_version, devices, absent)


def library_status(started: Started) -> DiscoveryStatus:
    """What a failed initialisation means. A stub is known by its folder or its words; its code differs by release."""
    if is_stub(started):
        return DiscoveryStatus.STUB_LIBRARY
    if not started.binding or (started.code == 12 and started.library_path is not None):
        return DiscoveryStatus.FAILED
    return _STATUS_OF_CODE.get(started.code, DiscoveryStatus.FAILED)


def is_stub(started: Started) -> bool:
    return "/stubs/" in (started.library_path or "") or "stub library" in started.text


def kernel_driver_version() -> str | None:
    """The version of the kernel's half of the driver; None where there is none or it cannot be read."""
    try:
        with open(KERNEL_VERSION_PATH, encoding="utf-8", errors="replace") as file:
            return version_in(file.read())
    except OSError:
        return None


def version_in(text: str) -> str | None:
    """The version in what /proc/driver/nvidia/version says, in the wording of the closed and of the open modules."""
    match = _KERNEL_VERSION.search(text)
    return match.group(1) if match else None


def _refused(started: Started) -> Discovery:
    status = library_status(started)
    where = started.library_path or "libnvidia-ml.so.1"
    if not started.binding:
        text = f"The Python package nvidia-ml-py could not be imported: {started.text}"
    elif status in _WAYS_OUT:
        library = _LIBRARY_VERSION.search(where)
        text = _WAYS_OUT[status].format(
            where=where,
            kernel=kernel_driver_version() or "of unknown version",
            library=library.group(1) if library else "of unknown version",
        )
    else:
        text = f"The NVIDIA library {where} could not be initialised: {started.text} (NVML error {started.code})."
    return Discovery(status, text, started.driver_version)


def _devices(heard: _Heard, count: int) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    found: dict[str, Described] = {}
    absent = []
    for index in range(count):
        described = heard.described.get(index)
        if described is None:
            absent.append(f"GPU {index} did not answer.")
        elif described.code != 0:
            absent.append(f"GPU {index} cannot be used: {described.text}.")
        elif described.uuid in found:
            absent.append(f"GPU {index} has the UUID of GPU {found[described.uuid].index}, {described.uuid}.")
        else:
            found[described.uuid] = described
    by_index = {described.index: described.uuid for described in found.values()}
    devices = []
    for described in found.values():
        links = heard.links.get(described.index, [])
        devices.append(_device(described, tuple((by_index[o], kind) for o, kind in links if o in by_index)))
    return tuple(devices), tuple(absent)


def _device(described: Described, links: tuple[tuple[str, str], ...]) -> Device:
    own = described.memory_supported
    model = model_name(described.name, described.memory_bytes_total if own else None)
    reserved = described.memory_bytes_reserved
    if reserved is None:
        # Drivers before 510 do not say; the model's figure is nearer than none.
        reserved = MODELS[model].memory_bytes_reserved if model in MODELS else 0
    return Device(
        uuid=described.uuid,
        index=described.index,
        model=model,
        memory_bytes_total=described.memory_bytes_total if own else machine_memory_bytes()[0],
        memory_bytes_reserved=reserved,
        numa_node=described.numa_node if described.numa_node is not None else _numa_of_bus(described.pci_bus_id),
        links=links,
        minor=described.minor,
        pci_bus_id=described.pci_bus_id,
        cpus=tuple(described.cpus),
        unified=not own,
        mig=described.mig,
    )


def machine_memory_bytes() -> tuple[int, int]:
    """The machine's memory, total and available: what a GPU without memory of its own shares."""
    fields = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, rest = line.partition(":")
            fields[name] = int(rest.split()[0]) << 10
    return fields["MemTotal"], fields["MemAvailable"]


def _numa_of_bus(pci_bus_id: str | None) -> int | None:
    """What the kernel says of the slot; NVML writes the PCI domain with eight digits, the kernel with four."""
    if pci_bus_id is None or not re.fullmatch(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+", pci_bus_id):
        return None
    try:
        with open(f"/sys/bus/pci/devices/{pci_bus_id[-12:].lower()}/numa_node", encoding="ascii") as file:
            node = int(file.read())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
