"""What a decision sees of a GPU: open only after a look that shows it empty."""

import pytest

from courtier.domain.devices import DeviceMode, ExternalProcess, Reading
from courtier.domain.lifecycle import JobState
from courtier.domain.policy import Policy
from courtier.domain.workloads import Request
from courtier.engine.picture import device_room, picture, reclaiming_uuids
from courtier.engine.state import State
from makers import BOOT, GIB, NOW, make_allocation, make_box, make_device, make_job, make_reading, make_share

DEVICE = make_device(0)
EMPTY = State()
EXTERNAL = make_reading(0, NOW, external=(ExternalProcess(5, None, None, 3 * GIB),))


# state's tenants, reading, freed at -> open, reclaiming, free GiB
@pytest.mark.parametrize(
    ("reading", "freed_ms", "seen"),
    [
        (None, None, (False, False, 80)),
        (make_reading(0, NOW), None, (True, False, 80)),
        (make_reading(0, NOW - 1), NOW, (False, True, 80)),
        (make_reading(0, NOW), NOW, (True, False, 80)),
        (make_reading(0, NOW, (9, 2 * GIB)), None, (False, True, 78)),
        (make_reading(0, NOW, (9, 0)), None, (True, False, 80)),
        (EXTERNAL, None, (True, False, 77)),
    ],
    ids=[
        "never-read",
        "empty",
        "read-before-it-was-freed",
        "read-as-it-was-freed",
        "memory-left",
        "none-left",
        "foreign",
    ],
)
def test_when_a_gpu_is_open(reading: Reading | None, freed_ms: int | None, seen: tuple[bool, bool, int]) -> None:
    readings = {DEVICE.uuid: reading} if reading is not None else {}
    freed = {DEVICE.uuid: freed_ms} if freed_ms is not None else {}
    room = device_room(EMPTY, DEVICE, readings, freed)
    assert (room.open, room.reclaiming, room.memory_bytes_free // GIB) == seen
    box = make_box(DEVICE)
    wanted = (DEVICE.uuid,) if reading is None or seen[1] else ()
    assert reclaiming_uuids(EMPTY, box, readings, freed) == wanted


@pytest.mark.parametrize(
    ("shares", "mode", "free", "tenants"),
    [
        ([make_share(0)], DeviceMode.WHOLE, 0, 1),
        ([make_share(0, size_gib=20, whole=False)], DeviceMode.SHARED, 60, 1),
        ([make_share(0, size_gib=20, whole=False)] * 3, DeviceMode.SHARED, 20, 3),
    ],
)
def test_what_is_held_is_not_free_even_while_unused(shares: list, mode: DeviceMode, free: int, tenants: int) -> None:  # type: ignore[type-arg]
    jobs = [
        make_job(n, JobState.STARTING, allocation=make_allocation(share)) for n, share in enumerate(shares, start=1)
    ]
    room = device_room(State(jobs), DEVICE, {DEVICE.uuid: make_reading(0, NOW, (1, GIB))}, {})
    assert (room.open, room.mode, room.memory_bytes_free, room.tenants) == (True, mode, free * GIB, tenants)


def test_the_picture_holds_heads_counts_and_what_is_left() -> None:
    running = make_allocation(make_share(1), cpus=5, memory_bytes=7 * GIB, master_port=20_004)
    jobs = [
        make_job(1, JobState.RUNNING, Request(cpus=5), allocation=running),
        *(make_job(n, priority=n % 2) for n in range(2, 7)),
        make_job(7, request=Request(gpus=1)),
        make_job(8, JobState.HELD),
        make_job(9, eligible_ms=None),
    ]
    seen = picture(State(jobs), make_box(cpus=8, memory_gib=10), BOOT, Policy(heads_per_class=2), {}, {})
    assert (seen.box.cpus_free, seen.box.memory_bytes_free) == (3, 3 * GIB)
    assert seen.ports_taken == {20_004}
    found = {group.key.request.gpus: ([job.id for job in group.heads], group.count) for group in seen.pending}
    assert found == {0: ([3, 5], 5), 1: ([7], 1)}
