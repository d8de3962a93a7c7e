"""What must hold after every step, and at the end. Each finding is a sentence that begins with the law's name."""

from collections import Counter

from courtier.domain.devices import Box
from courtier.domain.lifecycle import ENDED, HOLDING, IllegalChange, JobState
from courtier.domain.workloads import Job
from courtier.engine.events import Event, fold
from courtier.engine.loop import Loop
from courtier.engine.state import State
from courtier.scheduler.cycle import schedule

INDEXES = ("queue", "holding", "array_members", "array_running", "dependents", "begins", "keys")


class Violation(Exception):
    """A law was broken; `law` is its name."""

    def __init__(self, law: str, text: str) -> None:
        super().__init__(f"{law}: {text}")
        self.law = law


class HistoryChecker:
    """Folds the store's events as they come, and compares with the store's rows."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._seen = 0

    def check(self, events: list[Event], rows: dict[int, Job]) -> None:
        touched = set()
        for event in events[self._seen :]:
            self._seen += 1
            if event.sequence != self._seen:
                raise Violation("event_lost", f"sequence {event.sequence} follows {self._seen - 1}")
            if event.row is not None and event.job_id in self._jobs:
                raise Violation("id_reused", f"job {event.job_id} was submitted twice")
            try:
                fold(self._jobs, event)
            except IllegalChange as error:
                raise Violation("illegal_change", f"job {event.job_id}: {error}") from error
            if event.job_id is not None:
                touched.add(event.job_id)
        for job_id in touched:
            if self._jobs[job_id] != rows.get(job_id):
                raise Violation("event_lost", f"the events of job {job_id} do not give its row")


def check_indexes(state: State) -> None:
    """The indexes over the rows are those that the rows alone would give."""
    fresh = State(state.jobs.values(), next_id=state.next_id, next_sequence=state.next_sequence)
    for name in (*INDEXES, "user_jobs", "user_gpus"):
        if getattr(fresh, name) != getattr(state, name):
            raise Violation("index_drift", f"{name} is not what the rows give")
    held = {uuid: tenants for uuid, tenants in state.tenancy.items() if tenants}
    if held != {uuid: tenants for uuid, tenants in fresh.tenancy.items() if tenants}:
        raise Violation("gpu_leaked", "tenancy is not what the rows give")
    if (fresh.cpus_held, fresh.memory_bytes_held) != (state.cpus_held, state.memory_bytes_held):
        raise Violation("index_drift", "CPU or memory held is not what the rows give")


def check_capacity(state: State, box: Box) -> None:
    """No GPU beyond its memory, a whole one has one tenant, CPUs are not given twice."""
    usable = {device.uuid: device.memory_bytes_usable for device in box.devices}
    for uuid, tenants in state.tenancy.items():
        if sum(share.memory_bytes for share in tenants.values()) > usable[uuid]:
            raise Violation("over_capacity", f"GPU {uuid} holds {sorted(tenants)}")
        if len(tenants) > 1 and any(share.whole for share in tenants.values()):
            raise Violation("over_capacity", f"whole GPU {uuid} has tenants {sorted(tenants)}")
    if state.cpus_held > box.cpus:
        raise Violation("over_capacity", f"{state.cpus_held} CPUs held of {box.cpus}")


def check_prompt(loop: Loop, now: int) -> None:
    """Nothing that could start was left waiting: a second decision on the same picture starts nobody."""
    plan = schedule(loop.snapshot(), loop.policy, now)
    if plan.placements:
        raise Violation("lost_wakeup", f"job {plan.placements[0].job_id} could start and was not placed")


def check_starts(starts: dict[tuple[int, int], int]) -> None:
    for (job_id, attempt), count in starts.items():
        if count > 1:
            raise Violation("double_start", f"attempt {attempt} of job {job_id} started {count} times")


def check_end(
    rows: dict[int, Job], acknowledged: set[int], events: list[Event], started: dict[int, int], codes: dict[int, int]
) -> None:
    """Liveness and truth once all faults are over."""
    lost = acknowledged - rows.keys()
    if lost:
        raise Violation("job_lost", f"accepted jobs {sorted(lost)} are not in the store")
    told = Counter(event.job_id for event in events if event.kind == "started")
    for job_id, job in rows.items():
        if job.state not in ENDED:
            raise Violation("not_live", f"job {job_id} is still {job.state}")
        if told[job_id] != started.get(job_id, 0):
            raise Violation("event_lost", f"job {job_id} started {started.get(job_id, 0)} times, told {told[job_id]}")
        planned = codes.get(job_id, 0)
        if (
            job.state in (JobState.COMPLETED, JobState.FAILED)
            and job.exit_code is not None
            and job.exit_code != planned
        ):
            raise Violation("wrong_exit_code", f"job {job_id}: {job.exit_code}, not {planned}")
    assert not any(job.state in HOLDING for job in rows.values())
