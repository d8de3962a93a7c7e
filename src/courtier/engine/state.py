"""The live jobs and what is derived from them: the queue, who holds what, who waits for whom.

Rows change through `apply(event)` only. Everything else here is an index over the rows, kept up in one
place (`_index`), so that it cannot drift; `check.py` rebuilds it and compares. A step that is not
committed is undone by putting the former rows back.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping

from courtier.domain.allocations import DeviceShare
from courtier.domain.health import Quarantine
from courtier.domain.lifecycle import ENDED, HOLDING, JobState
from courtier.domain.snapshot import ClassKey, PendingJob
from courtier.domain.workloads import Job
from courtier.engine.events import Event, fold_devices, folded
from courtier.placement.feasible import gpus_wanted

Rank = tuple[int, int, int]


def class_key(job: Job) -> ClassKey:
    """Which jobs placement cannot tell from this one."""
    wants_gpus = gpus_wanted(job.spec.request) > 0
    return ClassKey(
        job.spec.request,
        job.array_id if job.array_limit else None,
        job.spec.isolation,
        job.spec.user if wants_gpus else None,
    )


def pending_job(job: Job) -> PendingJob:
    return PendingJob(job.priority, job.id, job.id, job.spawn, job.eligible_ms or 0)


def is_queued(job: Job) -> bool:
    """Waits for nothing but room."""
    return job.state is JobState.PENDING and job.eligible_ms is not None


class State:
    """next_id and next_sequence only grow; both are part of what a step commits."""

    def __init__(
        self,
        jobs: Iterable[Job] = (),
        *,
        quarantines: Mapping[str, Quarantine] | None = None,
        next_id: int = 1,
        next_sequence: int = 1,
    ) -> None:
        self.jobs: dict[int, Job] = {}
        self.quarantines: dict[str, Quarantine] = dict(quarantines or {})
        self._quarantines_before: dict[str, Quarantine | None] = {}
        self.next_id = next_id
        self.next_sequence = next_sequence
        self.queue: dict[ClassKey, list[Rank]] = {}
        self.tenancy: dict[str, dict[int, DeviceShare]] = {}
        self.holding: dict[int, Job] = {}
        self.array_members: dict[int, set[int]] = {}
        self.array_running: dict[int, int] = {}
        self.dependents: dict[int, set[int]] = {}
        self.begins: dict[int, int] = {}
        self.keys: dict[tuple[str, str], int] = {}
        self.user_jobs: dict[str, int] = {}
        self.user_gpus: dict[str, int] = {}
        self.cpus_held = 0
        self.memory_bytes_held = 0
        self._before: dict[int, Job | None] = {}
        self._counters_before = (next_id, next_sequence)
        for job in jobs:
            self._put(job)
        self.commit()

    # Rows -----------------------------------------------------------------------------------------

    def apply(self, event: Event) -> Job:
        """Folds one event into the rows and the indexes; returns the new row."""
        assert event.job_id is not None
        former = self.jobs.get(event.job_id)
        self._before.setdefault(event.job_id, former)
        after = folded(former, event)
        self._put(after)
        self.next_sequence = event.sequence + 1
        self.next_id = max(self.next_id, after.id + 1, (after.array_id or 0) + 1)
        return after

    def apply_device(self, event: Event) -> None:
        """Folds one event of a GPU."""
        assert event.uuid is not None
        self._quarantines_before.setdefault(event.uuid, self.quarantines.get(event.uuid))
        fold_devices(self.quarantines, event)
        self.next_sequence = event.sequence + 1

    def changed_quarantines(self) -> dict[str, Quarantine | None]:
        """GPUs that this step set aside or took back (None)."""
        return {uuid: self.quarantines.get(uuid) for uuid in self._quarantines_before}

    def load(self, job: Job) -> None:
        """Brings an ended row back for one step (requeue of an ended job)."""
        if job.id not in self.jobs:
            self._put(job)

    def _put(self, job: Job) -> None:
        former = self.jobs.get(job.id)
        if former is not None:
            self._index(former, present=False)
        self.jobs[job.id] = job
        self._index(job, present=True)

    def _drop(self, job_id: int) -> None:
        former = self.jobs.pop(job_id, None)
        if former is not None:
            self._index(former, present=False)

    def changed(self) -> list[Job]:
        """Rows that this step changed, in order of id."""
        return [self.jobs[job_id] for job_id in sorted(self._before)]

    def formers(self) -> list[tuple[int, Job | None]]:
        """Rows as they were before this step, of the jobs that it changed."""
        return list(self._before.items())

    def commit(self) -> None:
        """The step is on disk: ended rows leave memory."""
        for job_id in self._before:
            if self.jobs[job_id].state in ENDED:
                self._drop(job_id)
        self._before.clear()
        self._quarantines_before.clear()
        self._counters_before = (self.next_id, self.next_sequence)

    def rollback(self) -> None:
        """The step could not be kept: everything is as it was before."""
        for job_id, former in self._before.items():
            if former is None:
                self._drop(job_id)
            else:
                self._put(former)
        self._before.clear()
        for uuid, quarantine in self._quarantines_before.items():
            if quarantine is None:
                self.quarantines.pop(uuid, None)
            else:
                self.quarantines[uuid] = quarantine
        self._quarantines_before.clear()
        self.next_id, self.next_sequence = self._counters_before

    def evict_ended(self) -> None:
        """Rows that were loaded for a step and stayed ended go again."""
        for job_id in [job_id for job_id, job in self.jobs.items() if job.state in ENDED]:
            self._drop(job_id)

    # Indexes --------------------------------------------------------------------------------------

    def _index(self, job: Job, *, present: bool) -> None:
        if job.state in ENDED:
            return
        _count(self.user_jobs, job.spec.user, 1 if present else -1)
        if is_queued(job):
            self._index_queue(job, present=present)
        elif job.state is JobState.PENDING:
            self._index_waiting(job, present=present)
        elif job.state in HOLDING:
            self._index_holding(job, present=present)
        if job.array_id is not None:
            _member(self.array_members, job.array_id, job.id, present=present)
        for dependency in job.dependencies:
            _member(self.dependents, dependency.job_id, job.id, present=present)
        if job.spec.key is not None:
            if present:
                self.keys[job.spec.user, job.spec.key] = job.id
            else:
                self.keys.pop((job.spec.user, job.spec.key), None)

    def _index_queue(self, job: Job, *, present: bool) -> None:
        key, rank = class_key(job), pending_job(job).rank
        ranks = self.queue.setdefault(key, [])
        if present:
            insort(ranks, rank)
        else:
            ranks.pop(bisect_left(ranks, rank))
            if not ranks:
                del self.queue[key]

    def _index_waiting(self, job: Job, *, present: bool) -> None:
        if job.begin_ms is None or job.dependencies:
            return
        if present:
            self.begins[job.id] = job.begin_ms
        else:
            self.begins.pop(job.id, None)

    def _index_holding(self, job: Job, *, present: bool) -> None:
        sign = 1 if present else -1
        if present:
            self.holding[job.id] = job
        else:
            self.holding.pop(job.id, None)
        if job.array_id is not None:
            running = self.array_running.get(job.array_id, 0) + sign
            self.array_running[job.array_id] = running
            if not running:
                del self.array_running[job.array_id]
        allocation = job.allocation
        if allocation is None:
            return
        self.cpus_held += sign * allocation.cpus
        self.memory_bytes_held += sign * (allocation.memory_bytes or 0)
        _count(self.user_gpus, job.spec.user, sign * len(allocation.devices))
        for share in allocation.devices:
            tenants = self.tenancy.setdefault(share.uuid, {})
            if present:
                tenants[job.id] = share
            else:
                tenants.pop(job.id, None)


def _count(table: dict[str, int], key: str, change: int) -> None:
    table[key] = table.get(key, 0) + change
    if not table[key]:
        del table[key]


def _member(table: dict[int, set[int]], key: int, job_id: int, *, present: bool) -> None:
    if present:
        table.setdefault(key, set()).add(job_id)
        return
    members = table.get(key)
    if members is not None:
        members.discard(job_id)
        if not members:
            del table[key]
