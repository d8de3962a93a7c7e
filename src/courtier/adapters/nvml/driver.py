"""Questions to NVML about one GPU, each answered alone: a metric that fails leaves the others as they are.

Runs in the worker only. A call may hang for ever; nothing here may hold a lock over one. Strings from the driver are
made printable, whatever bytes they hold. Meaning of the calls: NVML API reference, and nvidia-ml-py for the symbols.
"""

from collections.abc import Callable
from typing import Any

import pynvml

from courtier.adapters.nvml.messages import Described, Seen

OK, NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, MISMATCH, UNKNOWN = 0, 3, 13, 15, 16, 18, 999
# CPUs that an affinity may name: 1,024.
AFFINITY_WORDS = 16
NODE_WORDS = 2
P2P_NVLINK = 2
P2P_OK = 0
NVLINKS_MAX = 18
TOPOLOGY_KINDS = {0: "pix", 10: "pix", 20: "pxb", 30: "phb", 40: "node", 50: "sys"}
_MEMORY_V2 = pynvml.nvmlMemory_v2


class Refused(Exception):
    """NVML's answer was an error; `code` is its number."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def printable(raw: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in raw).strip()


def ask(call: Callable[..., Any], *arguments: Any) -> Any:
    """One call. Raises Refused. Broken UTF-8, which the binding chokes on, comes back with the bytes spelled out."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise Refused(error.value) from None
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", "backslashreplace")


def text(call: Callable[..., Any], *arguments: Any) -> str:
    answer = ask(call, *arguments)
    return printable(answer if isinstance(answer, str) else answer.decode("utf-8", "backslashreplace"))


def optional(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return ask(call, *arguments)
    except Refused:
        return None


def explain(code: int) -> str:
    """The library's own words for a code."""
    try:
        return text(pynvml.nvmlErrorString, code)
    except Exception:
        return f"NVML error {code}"


def bits(words: Any) -> list[int]:
    return [64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1]


def _bus_id(device: Any) -> str | None:
    try:
        return printable(pynvml.nvmlDeviceGetPciInfo(device).busId) or None
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None


def uuid_of(device: Any, pci_bus_id: str | None) -> str:
    """The UUID; where the driver has none that can be read, the place on the bus stands for it. Raises Refused."""
    found = text(pynvml.nvmlDeviceGetUUID, device)
    return found or f"PCI-{pci_bus_id}"


def describe(index: int) -> Described:
    """Everything about one GPU that does not change. Raises nothing: an answer that fails is in `code`."""
    try:
        device = ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        pci_bus_id = _bus_id(device)
        total, reserved, supported = _memory(device)
        mig = optional(pynvml.nvmlDeviceGetMigMode, device)
        nodes = optional(pynvml.nvmlDeviceGetMemoryAffinity, device, NODE_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
        near = bits(nodes) if nodes is not None else []
        return Described(
            index=index,
            uuid=uuid_of(device, pci_bus_id),
            name=text(pynvml.nvmlDeviceGetName, device),
            minor=optional(pynvml.nvmlDeviceGetMinorNumber, device),
            pci_bus_id=pci_bus_id,
            memory_supported=supported,
            memory_bytes_total=total,
            memory_bytes_reserved=reserved,
            numa_node=near[0] if len(near) == 1 else None,
            cpus=bits(optional(pynvml.nvmlDeviceGetCpuAffinity, device, AFFINITY_WORDS) or ()),
            mig=bool(mig and mig[0]),
        )
    except Refused as refused:
        return Described(index=index, code=refused.code, text=explain(refused.code))


def _memory(device: Any) -> tuple[int, int | None, bool]:
    """Total, what the driver keeps (None: it does not say), and whether the GPU has memory of its own."""
    try:
        memory = ask(pynvml.nvmlDeviceGetMemoryInfo, device, _MEMORY_V2)
        return memory.total, memory.reserved, True
    except Refused as refused:
        if refused.code in (GPU_IS_LOST, RESET_REQUIRED):
            raise
    try:
        return ask(pynvml.nvmlDeviceGetMemoryInfo, device).total, None, True
    except Refused as refused:
        if refused.code != NOT_SUPPORTED:
            raise
        return 0, None, False


def links_of(index: int, others: list[int]) -> list[tuple[int, str]]:
    """How a GPU reaches others; one whose place nobody says is left out."""
    device = optional(pynvml.nvmlDeviceGetHandleByIndex, index)
    if device is None:
        return []
    wired = _nvlink_peers(device)
    found = []
    for other in others:
        peer = optional(pynvml.nvmlDeviceGetHandleByIndex, other)
        if peer is None:
            continue
        if optional(pynvml.nvmlDeviceGetP2PStatus, device, peer, P2P_NVLINK) == P2P_OK or _bus_id(peer) in wired:
            found.append((other, "nvlink"))
            continue
        level = optional(pynvml.nvmlDeviceGetTopologyCommonAncestor, device, peer)
        if level in TOPOLOGY_KINDS:
            found.append((other, TOPOLOGY_KINDS[level]))
    return found


def _nvlink_peers(device: Any) -> set[str]:
    """PCI bus ids at the far end of the active links. A switch's is among them where there is one."""
    peers = set()
    for link in range(NVLINKS_MAX):
        active = optional(pynvml.nvmlDeviceGetNvLinkState, device, link)
        if active is None:
            break
        if active:
            try:
                peers.add(printable(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(device, link).busId))
            except (pynvml.NVMLError, UnicodeDecodeError):
                continue
    return peers


def find(uuid: str, pci_bus_id: str | None) -> Any:
    """The handle of a GPU that was described before. Raises Refused, GPU_IS_LOST where it is not there any more.

    A UUID that cannot be asked for (broken bytes, none) is looked up by its place, and must be the same there.
    """
    try:
        return ask(pynvml.nvmlDeviceGetHandleByUUID, uuid.encode("ascii", "replace"))
    except Refused as refused:
        if refused.code in (GPU_IS_LOST, RESET_REQUIRED):
            raise
        if pci_bus_id is None:
            raise Refused(GPU_IS_LOST) from None
    try:
        device = ask(pynvml.nvmlDeviceGetHandleByPciBusId, pci_bus_id.encode("ascii", "replace"))
        same = uuid_of(device, pci_bus_id) == uuid
    except Refused as refused:
        raise Refused(refused.code if refused.code in (RESET_REQUIRED, MISMATCH) else GPU_IS_LOST) from None
    if not same:
        raise Refused(GPU_IS_LOST)
    return device


def _temperature(device: Any) -> int:
    try:
        return int(ask(pynvml.nvmlDeviceGetTemperatureV, device, pynvml.NVML_TEMPERATURE_GPU))
    except Refused as refused:
        # Drivers before 570 have only the older call.
        if refused.code not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
            raise
        return int(ask(pynvml.nvmlDeviceGetTemperature, device, pynvml.NVML_TEMPERATURE_GPU))


_LISTS = (
    pynvml.nvmlDeviceGetComputeRunningProcesses,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
)


def _processes(device: Any) -> list[tuple[int, int | None]]:
    """(pid, bytes) of every process; raises Refused only where no list can be had.

    A process may stand in several lists with the same memory, which then counts once; on a divided GPU it may stand
    in one list once for each part, and these add up.
    """
    taken: dict[tuple[int, int, int], int | None] = {}
    code = OK
    answered = False
    for listing in _LISTS:
        try:
            entries = ask(listing, device)
        except Refused as refused:
            code = refused.code if code in (OK, NOT_SUPPORTED) else code
            continue
        answered = True
        for entry in entries:
            key = (entry.pid, entry.gpuInstanceId, entry.computeInstanceId)
            known, more = taken.get(key), entry.usedGpuMemory
            taken[key] = more if known is None else max(known, more or 0)
    if not answered:
        raise Refused(code)
    sums: dict[int, int | None] = {}
    for (pid, _, _), amount in taken.items():
        known = sums.get(pid)
        sums[pid] = amount if known is None else known + (amount or 0)
    return list(sums.items())


_METRICS: dict[str, Callable[[Any], Any]] = {
    # Used by this call counts what the driver keeps for itself, on drivers of all ages.
    "memory_bytes_used": lambda device: ask(pynvml.nvmlDeviceGetMemoryInfo, device).used,
    "processes": _processes,
    "utilization_percent": lambda device: ask(pynvml.nvmlDeviceGetUtilizationRates, device).gpu,
    "temperature_celsius": _temperature,
    "power_milliwatts": lambda device: ask(pynvml.nvmlDeviceGetPowerUsage, device),
}


def fault_of(codes: list[int], answered: bool) -> str | None:
    """What errors say of the GPU as a whole."""
    if GPU_IS_LOST in codes:
        return "gpu_lost"
    if RESET_REQUIRED in codes:
        return "gpu_reset_required"
    if MISMATCH in codes:
        return "driver_mismatch"
    return "driver_failed" if not answered and any(code != NOT_SUPPORTED for code in codes) else None


def look(uuid: str, device: Any) -> Seen:
    """One reading of one GPU. Raises nothing."""
    values: dict[str, Any] = {}
    errors: dict[str, int] = {}
    for name, metric in _METRICS.items():
        try:
            values[name] = metric(device)
        except Refused as refused:
            errors[name] = refused.code
            if refused.code in (GPU_IS_LOST, RESET_REQUIRED):
                break
        except Exception:
            # One metric of a driver that answers nonsense must not take the others along.
            errors[name] = UNKNOWN
    return Seen(uuid=uuid, fault=fault_of(list(errors.values()), bool(values)), errors=errors, **values)
