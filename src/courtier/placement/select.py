"""Where a request goes now: filters, then least leftover, then the best linked set. Pure.

Answers with the GPUs, or with the reason why nothing fits. Whole GPUs are empty ones; a share by
declared memory goes to the fullest shared GPU that still holds it, an empty one last.
"""

from collections.abc import Sequence

from courtier.domain.allocations import DeviceShare
from courtier.domain.devices import Device, DeviceMode
from courtier.domain.reasons import Reason, reason
from courtier.domain.snapshot import BoxRoom, DeviceRoom
from courtier.domain.workloads import Request
from courtier.placement.feasible import by_model, gpus_wanted, of_model, split_count
from courtier.placement.topology import best_linked


def select(request: Request, box: BoxRoom, rooms: Sequence[DeviceRoom]) -> tuple[DeviceShare, ...] | Reason:
    """The GPUs (none for a CPU job), or the first reason against it."""
    if request.cpus > box.cpus_free:
        return reason("cpus", cpus=request.cpus, cpus_free=box.cpus_free, cpus_total=box.cpus_total)
    if request.memory_bytes is not None and request.memory_bytes > box.memory_bytes_free:
        return reason(
            "memory",
            needed_bytes=request.memory_bytes,
            free_bytes=box.memory_bytes_free,
            total_bytes=box.memory_bytes_total,
        )
    if gpus_wanted(request) == 0:
        return ()
    allowed = {device.uuid for device in of_model([room.device for room in rooms], request.gpu_model)}
    fitting = [room for room in rooms if room.device.uuid in allowed]
    if not fitting:
        # Impossible when it was asked for; a GPU that fell away since can leave a queue like this.
        models = ", ".join(sorted({room.device.model for room in rooms})) or "no GPUs at all"
        return reason("gpu_model_unknown", model=request.gpu_model or "any", models=models)
    if request.split:
        return _split(request, fitting)
    if request.gpu_memory_bytes is None and request.gpu_milli is None:
        return _whole(request, fitting)
    return _shared(request, fitting)


def is_empty(room: DeviceRoom) -> bool:
    return room.open and room.tenants == 0 and room.external_bytes == 0


def _whole(request: Request, rooms: Sequence[DeviceRoom]) -> tuple[DeviceShare, ...] | Reason:
    wanted = gpus_wanted(request)
    empty = [room.device for room in rooms if is_empty(room)]
    if len(empty) < wanted:
        return _short_of(wanted, rooms, len(empty))
    # Least leftover: the smallest cards that do, so that the large ones stay for those who need them.
    for size in sorted({device.memory_bytes_usable for device in empty}):
        candidates = [device for device in empty if device.memory_bytes_usable <= size]
        if len(candidates) >= wanted:
            return tuple(_whole_share(device) for device in _one_model_first(candidates, wanted))
    raise AssertionError("the largest size admits every empty device")


def _one_model_first(devices: Sequence[Device], count: int) -> tuple[Device, ...]:
    """A set of one model where one model has enough: mixed sets run at the pace of the slowest."""
    for model in dict.fromkeys(device.model for device in devices):
        same = [device for device in devices if device.model == model]
        if len(same) >= count:
            return best_linked(same, count)
    return best_linked(devices, count)


def _whole_share(device: Device) -> DeviceShare:
    return DeviceShare(device.uuid, device.index, device.model, device.memory_bytes_usable, whole=True)


def _short_of(wanted: int, rooms: Sequence[DeviceRoom], free: int) -> Reason:
    """What stands in the way: memory on its way back, GPUs set aside, use from outside, else the other jobs."""
    idle = [room for room in rooms if room.tenants == 0]
    reclaiming = [room for room in idle if room.reclaiming and room.quarantined is None]
    if free + len(reclaiming) >= wanted:
        return reason("gpu_reclaiming", gpus=len(reclaiming))
    outside = [room for room in idle if room.external_bytes and room.quarantined is None]
    if free + len(reclaiming) + len(outside) >= wanted:
        return _outside(outside)
    aside = [room for room in rooms if room.quarantined is not None]
    if free + len(reclaiming) + len(outside) + len(aside) >= wanted:
        return _set_aside(aside)
    return reason("resources", gpus=wanted, gpus_free=free, gpus_total=len(rooms))


def _outside(rooms: Sequence[DeviceRoom]) -> Reason:
    most = max(rooms, key=lambda room: room.external_bytes)
    return reason(
        "gpu_external",
        gpus=len(rooms),
        used_bytes=most.external_bytes,
        index=most.device.index,
        holder=most.holder,
    )


def _set_aside(rooms: Sequence[DeviceRoom]) -> Reason:
    first = rooms[0]
    assert first.quarantined is not None
    return reason("gpu_quarantined", gpus=len(rooms), index=first.device.index, why=first.quarantined.text)


def memory_asked(request: Request, device: Device) -> int:
    """Bytes that one share takes of this device: what was declared, or the milli part of what is usable."""
    if request.gpu_memory_bytes is not None:
        return request.gpu_memory_bytes
    return -(-device.memory_bytes_usable * (request.gpu_milli or 1000) // 1000)


def _shared(request: Request, rooms: Sequence[DeviceRoom]) -> tuple[DeviceShare, ...] | Reason:
    wanted = gpus_wanted(request)
    holding = [
        room
        for room in rooms
        if room.open
        and room.mode in (None, DeviceMode.SHARED)
        and room.memory_bytes_free >= memory_asked(request, room.device)
    ]
    if len(holding) < wanted:
        free = max(
            (room.memory_bytes_free for room in rooms if room.open and room.mode is not DeviceMode.WHOLE), default=0
        )
        hidden = _hidden_memory(request, rooms, wanted - len(holding))
        if hidden is not None:
            return hidden
        return reason("gpu_memory", needed_bytes=memory_asked(request, rooms[0].device), free_bytes=free)
    holding.sort(key=lambda room: (room.tenants == 0, room.memory_bytes_free, room.device.index))
    if wanted == 1:
        chosen: Sequence[Device] = [holding[0].device]
    else:
        chosen = best_linked([room.device for room in holding], wanted)
    return tuple(
        DeviceShare(device.uuid, device.index, device.model, memory_asked(request, device), whole=False)
        for device in chosen
    )


def _hidden_memory(request: Request, rooms: Sequence[DeviceRoom], missing: int) -> Reason | None:
    """GPUs that would hold the request but for what is not a job's."""
    idle = [
        room
        for room in rooms
        if room.tenants == 0 and room.device.memory_bytes_usable >= memory_asked(request, room.device)
    ]
    reclaiming = [room for room in idle if room.reclaiming and room.quarantined is None]
    if len(reclaiming) >= missing:
        return reason("gpu_reclaiming", gpus=len(reclaiming))
    outside = [room for room in idle if room.external_bytes and room.quarantined is None]
    if len(outside) >= missing:
        return _outside(outside)
    aside = [room for room in rooms if room.quarantined is not None]
    return _set_aside(aside) if len(aside) >= missing else None


def _split(request: Request, rooms: Sequence[DeviceRoom]) -> tuple[DeviceShare, ...] | Reason:
    """Whole GPUs of one model, as few as hold the memory; among equals the best linked, then the smaller cards."""
    choices: list[tuple[int, int, tuple[Device, ...]]] = []
    fewest = 0
    empty_uuids = {room.device.uuid for room in rooms if is_empty(room)}
    for same in by_model([room.device for room in rooms]):
        count = split_count(request, same)
        if count > len(same):
            continue
        fewest = min(fewest or count, count)
        empty = [device for device in same if device.uuid in empty_uuids]
        if len(empty) >= count:
            choices.append((count, same[0].memory_bytes_usable, best_linked(empty, count)))
    if not choices:
        return _short_of(fewest or 1, rooms, sum(1 for room in rooms if is_empty(room)))
    _, _, chosen = min(choices, key=lambda choice: choice[:2])
    return tuple(_whole_share(device) for device in chosen)
