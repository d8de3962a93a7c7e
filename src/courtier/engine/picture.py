"""Makes the snapshot that a decision reads from live rows and readings. Derives, never remembers.

A GPU that nobody holds is open only once a reading taken after its last tenant went shows none of a
former tenant's memory. A GPU without any reading yet is not open.
"""

from collections.abc import Mapping

from courtier.domain.allocations import DeviceShare
from courtier.domain.devices import Box, Device, DeviceMode, Reading
from courtier.domain.policy import Policy
from courtier.domain.snapshot import BoxRoom, DeviceRoom, PendingClass, PendingJob, Snapshot
from courtier.domain.workloads import Job
from courtier.engine.state import State


def picture(
    state: State,
    box: Box,
    boot_id: str,
    policy: Policy,
    readings: dict[str, Reading],
    freed_ms: dict[str, int],
    *,
    ignored_bytes: int = 0,
) -> Snapshot:
    """Heads of every class, room of every GPU, room of the box."""
    rooms = tuple(device_room(state, device, readings, freed_ms, ignored_bytes=ignored_bytes) for device in box.devices)
    return Snapshot(
        box=BoxRoom(box.cpus, box.cpus - state.cpus_held, box.memory_bytes, box.memory_bytes - state.memory_bytes_held),
        devices=rooms,
        pending=tuple(_classes(state, policy.heads_per_class)),
        boot_id=boot_id,
        isolation=box.isolation,
        isolation_reason=box.isolation_reason,
        enforcement=box.enforcement,
        ports_taken=frozenset(
            job.allocation.master_port
            for job in state.holding.values()
            if job.allocation is not None and job.allocation.master_port is not None
        ),
        rooms_by_uuid={room.device.uuid: room for room in rooms},
        user_gpus=dict(state.user_gpus),
    )


def _classes(state: State, heads_max: int) -> list[PendingClass]:
    classes = []
    for key, ranks in state.queue.items():
        heads = []
        for _, _, job_id in ranks[:heads_max]:
            job = state.jobs[job_id]
            heads.append(PendingJob(job.priority, job.id, job.id, job.spawn, job.eligible_ms or 0))
        limit = state.jobs[ranks[0][2]].array_limit if key.array_id is not None else None
        running = state.array_running.get(key.array_id, 0) if key.array_id is not None else 0
        classes.append(PendingClass(key, tuple(heads), len(ranks), running, limit))
    return classes


def device_room(
    state: State,
    device: Device,
    readings: dict[str, Reading],
    freed_ms: dict[str, int],
    *,
    ignored_bytes: int = 0,
) -> DeviceRoom:
    tenants = state.tenancy.get(device.uuid, {})
    reading = readings.get(device.uuid)
    held = sum(share.memory_bytes for share in tenants.values())
    mode = None
    if tenants:
        whole = any(share.whole for share in tenants.values())
        mode = DeviceMode.WHOLE if whole else DeviceMode.SHARED
    reclaiming = is_reclaiming(state, device, reading, freed_ms)
    quarantine = state.quarantines.get(device.uuid)
    outside = external_bytes(state, device, reading, ignored_bytes=ignored_bytes)
    taken = max(held, _observed_bytes(tenants, reading)) + _former_bytes(tenants, reading) + outside
    return DeviceRoom(
        device=device,
        open=reading is not None and reading.fault is None and not reclaiming and quarantine is None and not device.mig,
        reclaiming=reclaiming,
        mode=mode,
        memory_bytes_free=device.memory_bytes_usable - taken,
        tenants=len(tenants),
        quarantined=quarantine.reason if quarantine is not None else None,
        external_bytes=outside,
        holder=holder_of(reading),
    )


def _observed_bytes(tenants: Mapping[int, DeviceShare], reading: Reading | None) -> int:
    return sum(used for job_id, used in reading.tenants if job_id in tenants) if reading is not None else 0


def _former_bytes(tenants: Mapping[int, DeviceShare], reading: Reading | None) -> int:
    """What processes hold that are nobody's tenants any more."""
    return sum(used for job_id, used in reading.tenants if job_id not in tenants) if reading is not None else 0


def external_bytes(state: State, device: Device, reading: Reading | None, *, ignored_bytes: int) -> int:
    """Memory held by nobody of Courtier's: by processes that the driver names, or by what it can not name.

    Below `ignored_bytes` it counts as nothing: a display or a monitor holds some on any desk.
    """
    if reading is None:
        return 0
    named = sum(process.memory_bytes or 0 for process in reading.external)
    tenants = state.tenancy.get(device.uuid, {})
    held = sum(share.memory_bytes for share in tenants.values())
    ours = max(held, _observed_bytes(tenants, reading)) + _former_bytes(tenants, reading)
    unnamed = 0
    if reading.memory_bytes_used is not None and not device.unified:
        unnamed = reading.memory_bytes_used - device.memory_bytes_reserved - ours - named
    outside = named + max(0, unnamed)
    return outside if outside > ignored_bytes else 0


def can_still_start(state: State, job: Job, device: Device, reading: Reading, *, ignored_bytes: int) -> bool:
    """Whether a GPU, read again right before the start, still has room for a job that was placed on it."""
    share = state.tenancy.get(device.uuid, {}).get(job.id)
    if reading.fault is not None or device.uuid in state.quarantines or share is None:
        return False
    room = device_room(state, device, {device.uuid: reading}, {}, ignored_bytes=ignored_bytes)
    return room.external_bytes == 0 if share.whole else room.memory_bytes_free >= 0


def holder_of(reading: Reading | None) -> str:
    """The process outside Courtier that holds most, in words."""
    if reading is None or not reading.external:
        return "a process that the driver does not name"
    most = max(reading.external, key=lambda process: process.memory_bytes or 0)
    return f"pid {most.pid} of {most.user or 'an unknown user'} ({most.command or 'an unknown command'})"


def is_reclaiming(state: State, device: Device, reading: Reading | None, freed_ms: dict[str, int]) -> bool:
    """A former tenant's memory is not back yet, or nobody has looked since it went."""
    freed = freed_ms.get(device.uuid)
    if reading is None:
        return False
    if freed is not None and reading.at_ms < freed:
        return True
    tenants = state.tenancy.get(device.uuid, {})
    return any(used > 0 and job_id not in tenants for job_id, used in reading.tenants)


def reclaiming_uuids(state: State, box: Box, readings: dict[str, Reading], freed_ms: dict[str, int]) -> tuple[str, ...]:
    """GPUs to be read at once: those being reclaimed, and those never read."""
    return tuple(
        device.uuid
        for device in box.devices
        if device.uuid not in readings or is_reclaiming(state, device, readings.get(device.uuid), freed_ms)
    )
