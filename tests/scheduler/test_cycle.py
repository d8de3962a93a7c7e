"""Golden decisions: who starts where, and why the others wait. Each row is one small situation."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from courtier.domain.devices import DeviceMode
from courtier.domain.policy import Policy
from courtier.domain.snapshot import BoxRoom, ClassKey, DeviceRoom, PendingClass, PendingJob, Snapshot
from courtier.domain.workloads import Request
from courtier.scheduler.cycle import schedule
from makers import BOOT, GIB, NOW, make_device

BARRIER_MS = 600_000


@dataclass
class Waits:
    """Jobs of one class: (id, priority) each, all eligible since `since_ms` ago."""

    request: Request
    jobs: list[tuple[int, int]]
    since_ms: int = 0
    count: int | None = None
    array: tuple[int, int, int] | None = None  # id, running, limit

    def group(self) -> PendingClass:
        array_id, running, limit = self.array or (None, 0, None)
        heads = sorted((PendingJob(p, n, n, 0, NOW - self.since_ms) for n, p in self.jobs), key=lambda job: job.rank)
        count = self.count if self.count is not None else len(heads)
        return PendingClass(ClassKey(self.request, array_id, None), tuple(heads), count, running, limit)


@dataclass
class Box:
    """Sizes of the GPUs in GiB; used: index -> GiB declared on it already (shared); whole: indices taken."""

    gpus: list[int] = field(default_factory=lambda: [80, 80, 80, 80])
    used: dict[int, int] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)
    cpus: int = 32
    ports: frozenset[int] = frozenset()

    def rooms(self) -> tuple[DeviceRoom, ...]:
        found = []
        for index, size in enumerate(self.gpus):
            device = make_device(index, size_gib=size, model=f"M{size}")
            mode = DeviceMode.WHOLE if index in self.whole else DeviceMode.SHARED if index in self.used else None
            free = 0 if index in self.whole else device.memory_bytes_usable - self.used.get(index, 0) * GIB
            shut = index in self.closed
            found.append(DeviceRoom(device, not shut, shut, mode, free, int(mode is not None)))
        return tuple(found)


def decide(box: Box, waits: list[Waits], policy: Policy | None = None) -> Any:
    rooms = box.rooms()
    snapshot = Snapshot(
        box=BoxRoom(box.cpus, box.cpus, 100 * GIB, 100 * GIB),
        devices=rooms,
        pending=tuple(one.group() for one in waits),
        boot_id=BOOT,
        isolation="env",
        isolation_reason=None,
        enforcement="none",
        ports_taken=box.ports,
        rooms_by_uuid={room.device.uuid: room for room in rooms},
        user_gpus={},
    )
    return schedule(snapshot, policy or Policy(barrier_after_ms=BARRIER_MS), NOW)


def gpus(count: int) -> Request:
    return Request(gpus=count)


def part(gib: int, count: int = 0) -> Request:
    return Request(gpus=count, gpu_memory_bytes=gib * GIB)


CPU = Request(cpus=8)
OLD, YOUNG = BARRIER_MS, BARRIER_MS - 1

# name: box, who waits -> [(job, its GPUs)] in order, {class: code of its reason}
GOLDEN: dict[str, tuple[Box, list[Waits], list[tuple[int, list[int]]], dict[Request, str]]] = {
    "arrival": (Box([80]), [Waits(gpus(1), [(2, 0), (1, 0)])], [(1, [0])], {gpus(1): "resources"}),
    "priority": (Box([80]), [Waits(gpus(1), [(1, 0), (2, 5)])], [(2, [0])], {gpus(1): "resources"}),
    "priority-over-classes": (
        Box([80, 80]),
        [Waits(gpus(2), [(1, 0)]), Waits(gpus(1), [(2, 5)])],
        [(2, [0])],
        {gpus(2): "resources"},
    ),
    "smaller-goes-by-a-young-one": (
        Box(whole={0}),
        [Waits(gpus(4), [(1, 0)], YOUNG), Waits(gpus(1), [(2, 0)])],
        [(2, [1])],
        {gpus(4): "resources"},
    ),
    "nobody-goes-by-an-old-one": (
        Box(whole={0}),
        [Waits(gpus(4), [(1, 0)], OLD), Waits(gpus(1), [(2, 0)]), Waits(part(5), [(3, 0)])],
        [],
        {gpus(4): "resources", gpus(1): "priority", part(5): "priority"},
    ),
    "cpu-jobs-go-by-a-gpu-barrier": (
        Box(whole={0}),
        [Waits(gpus(4), [(1, 0)], OLD), Waits(CPU, [(2, 0)])],
        [(2, [])],
        {gpus(4): "resources"},
    ),
    "gpu-jobs-stand-behind-a-cpu-barrier": (
        Box(cpus=4),
        [Waits(CPU, [(1, 0)], OLD), Waits(gpus(1), [(2, 0)])],
        [],
        {CPU: "cpus", gpus(1): "priority"},
    ),
    "higher-priority-goes-before-a-barrier": (
        Box(whole={0}),
        [Waits(gpus(4), [(1, 0)], OLD), Waits(gpus(1), [(2, 5)])],
        [(2, [1])],
        {gpus(4): "resources"},
    ),
    "least-leftover-whole": (Box([80, 40, 24, 40]), [Waits(gpus(1), [(1, 0)])], [(1, [2])], {}),
    "one-model-before-mixed": (Box([40, 80, 40]), [Waits(gpus(2), [(1, 0)])], [(1, [0, 2])], {}),
    "least-leftover-share": (Box(used={1: 60, 2: 50, 3: 75}), [Waits(part(20), [(1, 0)])], [(1, [1])], {}),
    "shares-fill-one-gpu-first": (
        Box([80, 80]),
        [Waits(part(40), [(1, 0), (2, 0), (3, 0)])],
        [(1, [0]), (2, [0]), (3, [1])],
        {},
    ),
    "whole-and-shared-never-mix": (
        Box([80]),
        [Waits(part(10), [(1, 0)]), Waits(gpus(1), [(2, 0)])],
        [(1, [0])],
        {gpus(1): "resources"},
    ),
    "shared-does-not-join-whole": (
        Box([80]),
        [Waits(gpus(1), [(1, 0)]), Waits(part(10), [(2, 0)])],
        [(1, [0])],
        {part(10): "gpu_memory"},
    ),
    "reclaiming-is-waited-for": (Box([80], closed={0}), [Waits(gpus(1), [(1, 0)])], [], {gpus(1): "gpu_reclaiming"}),
    "array-limit": (
        Box(),
        [Waits(gpus(1), [(11, 0), (12, 0), (13, 0)], array=(10, 1, 3)), Waits(part(1), [(14, 0)])],
        [(11, [0]), (12, [1]), (14, [2])],
        {gpus(1): "array_limit"},
    ),
    "array-full": (Box(), [Waits(CPU, [(11, 0)], array=(10, 2, 2))], [], {CPU: "array_limit"}),
    "a-full-array-is-no-barrier": (
        Box(),
        [Waits(gpus(1), [(11, 0)], OLD, array=(10, 1, 1)), Waits(gpus(2), [(12, 0)])],
        [(12, [0, 1])],
        {gpus(1): "array_limit"},
    ),
    "cpus-run-out": (Box(cpus=20), [Waits(CPU, [(1, 0), (2, 0), (3, 0)])], [(1, []), (2, [])], {CPU: "cpus"}),
    "split-takes-as-few-as-hold-it": (
        Box(),
        [Waits(Request(gpu_memory_bytes=150 * GIB, split=True), [(1, 0)])],
        [(1, [0, 1])],
        {},
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_decisions(name: str) -> None:
    box, waits, placed, refused = GOLDEN[name]
    plan = decide(box, waits)
    found = [(one.job_id, [share.index for share in one.allocation.devices]) for one in plan.placements]
    assert found == placed
    assert {key.request: why.code for key, why in plan.refusals.items()} == refused
    assert not plan.more


def test_more_is_said_while_heads_ran_out_before_room_did() -> None:
    assert decide(Box(), [Waits(gpus(1), [(1, 0)], count=2)]).more
    assert not decide(Box(), [Waits(gpus(1), [(1, 0)], count=1)]).more
    assert not decide(Box([80]), [Waits(gpus(1), [(1, 0), (2, 0)], count=9)]).more


def test_a_barrier_says_who_and_since_when() -> None:
    plan = decide(Box(whole={0}), [Waits(gpus(4), [(7, 0)], OLD + 5), Waits(gpus(1), [(8, 0)])])
    (why,) = [why for why in plan.refusals.values() if why.code == "priority"]
    assert dict(why.numbers) == {"ahead": 7, "waited_ms": OLD + 5}


def test_rendezvous_ports_follow_the_job_and_never_meet() -> None:
    policy = Policy(master_port_first=20_000, master_port_count=10)
    waits = [Waits(gpus(2), [(3, 0), (13, 0)]), Waits(CPU, [(4, 0)])]
    plan = decide(Box(ports=frozenset({20_003})), waits, policy)
    ports = {one.job_id: one.allocation.master_port for one in plan.placements}
    assert ports == {3: 20_004, 13: 20_005, 4: None}


def test_an_allocation_says_what_was_given() -> None:
    request = Request(gpus=1, cpus=3, memory_bytes=5 * GIB)
    (one,) = decide(Box([80]), [Waits(request, [(1, 0)])]).placements
    given = one.allocation
    assert (given.cpus, given.memory_bytes, given.boot_id, given.placed_ms) == (3, 5 * GIB, BOOT, NOW)
    assert [(share.uuid, share.memory_bytes, share.whole) for share in given.devices] == [("GPU-0", 80 * GIB, True)]
