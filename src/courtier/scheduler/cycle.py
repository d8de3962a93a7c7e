"""The whole decision on one page: who is next, does it fit, and if not, why.

    1. the first jobs of every class, merged into the one order (priority, arrival, id)
    2. a class that was refused once in this cycle is refused for all its later jobs: they ask the same
    3. what fits is placed at once, and its room is gone for all that follow
    4. a job that has waited beyond the barrier lets nobody behind it take what it waits for

A pure function of its arguments: it must never read a clock, draw a number or keep anything.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import merge

from courtier.domain.allocations import Allocation, DeviceShare
from courtier.domain.devices import DeviceMode
from courtier.domain.plan import Place, Plan
from courtier.domain.policy import Policy
from courtier.domain.reasons import Reason, reason
from courtier.domain.snapshot import BoxRoom, ClassKey, DeviceRoom, PendingClass, PendingJob, Snapshot
from courtier.domain.workloads import Request
from courtier.placement.feasible import gpus_wanted
from courtier.placement.select import select


@dataclass(frozen=True, slots=True)
class _Barrier:
    job_id: int
    waited_ms: int
    wants_gpus: bool


def schedule(snapshot: Snapshot, policy: Policy, now: int) -> Plan:
    """Decides who starts where at instant `now` (ms), and for every class that waits, why its first job does."""
    box, rooms = snapshot.box, dict(snapshot.rooms_by_uuid)
    ports = set(snapshot.ports_taken)
    user_gpus = dict(snapshot.user_gpus)
    refusals: dict[ClassKey, Reason] = {}
    placements: list[Place] = []
    taken: dict[ClassKey, int] = {}
    barrier: _Barrier | None = None
    for group, job in _in_order(snapshot.pending):
        key = group.key
        if key in refusals:
            continue
        refusal = _stands_behind(barrier, key.request) or _array_full(group, taken.get(key, 0))
        if refusal is None:
            found = select(key.request, box, tuple(rooms.values()))
            if isinstance(found, Reason):
                refusal = found
                waited_ms = now - job.eligible_ms
                if barrier is None and waited_ms >= policy.barrier_after_ms:
                    barrier = _Barrier(job.id, waited_ms, gpus_wanted(key.request) > 0)
            else:
                refusal = _user_full(policy, key, user_gpus, len(found))
        if refusal is not None:
            refusals[key] = refusal
            continue
        assert not isinstance(found, Reason)
        allocation = _allocation(snapshot, policy, job, key, found, ports, now)
        placements.append(Place(job.id, job.spawn, allocation))
        taken[key] = taken.get(key, 0) + 1
        if key.user is not None:
            user_gpus[key.user] = user_gpus.get(key.user, 0) + len(found)
        box, rooms = _without(box, rooms, allocation)
    more = any(group.count > len(group.heads) and group.key not in refusals for group in snapshot.pending)
    return Plan(tuple(placements), refusals, more)


def _in_order(groups: tuple[PendingClass, ...]) -> Iterator[tuple[PendingClass, PendingJob]]:
    streams = [[(job.rank, place, group, job) for job in group.heads] for place, group in enumerate(groups)]
    return ((group, job) for _, _, group, job in merge(*streams, key=lambda item: item[:2]))


def _stands_behind(barrier: _Barrier | None, request: Request) -> Reason | None:
    if barrier is None or (barrier.wants_gpus and gpus_wanted(request) == 0):
        return None
    return reason("priority", ahead=barrier.job_id, waited_ms=barrier.waited_ms)


def _user_full(policy: Policy, key: ClassKey, held: dict[str, int], gpus: int) -> Reason | None:
    if not policy.user_gpus_max or key.user is None:
        return None
    mine = held.get(key.user, 0)
    if mine + gpus <= policy.user_gpus_max:
        return None
    return reason("user_gpus", user=key.user, gpus=mine, limit=policy.user_gpus_max)


def _array_full(group: PendingClass, taken: int) -> Reason | None:
    if group.array_limit is None or group.array_running + taken < group.array_limit:
        return None
    return reason(
        "array_limit", array=group.key.array_id or 0, running=group.array_running + taken, limit=group.array_limit
    )


def _allocation(
    snapshot: Snapshot,
    policy: Policy,
    job: PendingJob,
    key: ClassKey,
    shares: tuple[DeviceShare, ...],
    ports: set[int],
    now: int,
) -> Allocation:
    port = None
    if len(shares) > 1:
        port = _free_port(policy, job.id, ports)
        ports.add(port)
    isolation, isolation_reason = _isolation(snapshot, key.isolation)
    return Allocation(
        devices=shares,
        cpus=key.request.cpus,
        memory_bytes=key.request.memory_bytes,
        isolation=isolation,
        isolation_reason=isolation_reason,
        boot_id=snapshot.boot_id,
        placed_ms=now,
        master_port=port,
        enforcement=snapshot.enforcement,
    )


def _isolation(snapshot: Snapshot, asked: str | None) -> tuple[str, str | None]:
    """The level that the job gets, and why it is not a stronger one."""
    if asked in (None, "any", snapshot.isolation):
        return snapshot.isolation, snapshot.isolation_reason
    return str(asked), "asked for"


def _free_port(policy: Policy, job_id: int, taken: set[int]) -> int:
    """The job's own number decides, so that a port comes back late; the next free one where that is taken."""
    for step in range(policy.master_port_count):
        port = policy.master_port_first + (job_id + step) % policy.master_port_count
        if port not in taken:
            return port
    raise AssertionError("more jobs with rendezvous ports than ports")


def _without(
    box: BoxRoom, rooms: dict[str, DeviceRoom], allocation: Allocation
) -> tuple[BoxRoom, dict[str, DeviceRoom]]:
    box = replace(
        box,
        cpus_free=box.cpus_free - allocation.cpus,
        memory_bytes_free=box.memory_bytes_free - (allocation.memory_bytes or 0),
    )
    for share in allocation.devices:
        room = rooms[share.uuid]
        rooms[share.uuid] = replace(
            room,
            mode=DeviceMode.WHOLE if share.whole else DeviceMode.SHARED,
            memory_bytes_free=room.memory_bytes_free - share.memory_bytes,
            tenants=room.tenants + 1,
        )
    return box, rooms
