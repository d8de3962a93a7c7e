"""One step while it is made: events are applied as they are emitted, commands and answers are collected.

Handlers get a Turn and nothing else; what they leave in it is what the step does.
"""

from dataclasses import dataclass, field
from typing import Any

from courtier.domain.attempts import StopCause
from courtier.domain.devices import Box, Reading
from courtier.domain.health import Quarantine
from courtier.domain.lifecycle import ENDED, JobState
from courtier.domain.reasons import Reason, reason
from courtier.domain.workloads import Job
from courtier.engine.commands import CleanAttempt, Command, StopAttempt
from courtier.engine.events import Event
from courtier.engine.state import State


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer to one request: the jobs it touched (rows as they are after the step), or why not."""

    jobs: tuple[Job, ...] = ()
    refusal: Reason | None = None
    existing: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines and bounds of the engine; every one is a setting.

    spawn_deadline_ms   a start that nobody took up by then is revoked and asked for anew
    start_backoff_ms    pause after the machine refused a start, doubled each time
    starts_refused_max  then the job fails
    """

    spawn_deadline_ms: int = 10_000
    start_backoff_ms: int = 1_000
    starts_refused_max: int = 5
    array_size_max: int = 10_000
    jobs_active_max: int = 200_000
    gpu_overuse_percent: int = 5
    user_jobs_active_max: int = 50_000
    user_gpus_max: int = 0
    reclaim_deadline_ms: int = 60_000
    watch_only: bool = False
    external_ignored_bytes: int = 512 << 20


@dataclass(slots=True)
class Turn:
    """now and boot_id are the step's own; readings are the newest of each GPU."""

    state: State
    box: Box
    boot_id: str
    limits: Limits
    readings: dict[str, Reading]
    now: int
    events: list[Event] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    replies: dict[int, Reply] = field(default_factory=dict)
    payloads: dict[str, bytes] = field(default_factory=dict)

    def emit(self, kind: str, job_id: int, **changes: Any) -> Job:
        """Something happened to a job: its row is changed at once."""
        event = Event(self.state.next_sequence, self.now, kind, job_id, changes)
        self.events.append(event)
        return self.state.apply(event)

    def emit_submitted(self, job: Job) -> Job:
        event = Event(self.state.next_sequence, self.now, "submitted", job.id, row=job)
        self.events.append(event)
        return self.state.apply(event)

    def emit_device(self, kind: str, uuid: str, quarantine: Quarantine | None = None, **changes: Any) -> None:
        """Something happened to a GPU."""
        event = Event(self.state.next_sequence, self.now, kind, None, changes, uuid=uuid, quarantine=quarantine)
        self.events.append(event)
        self.state.apply_device(event)

    def quarantine_device(self, uuid: str, quarantine: Quarantine) -> None:
        self.emit_device("gpu_quarantined", uuid, quarantine)

    def restore_device(self, uuid: str) -> None:
        self.emit_device("gpu_restored", uuid)

    def end(self, kind: str, job: Job, state: JobState, why: Reason | None) -> Job:
        """The job's last event of this attempt. Those who wait for it are told by `settle_dependents`."""
        return self.emit(kind, job.id, state=state, finished_ms=self.now, reason=why)

    def stop(self, job: Job, cause: StopCause, *, by: str | None, grace_ms: int, why: Reason | None = None) -> Job:
        """Asks a holding job to end; a repeated request may only shorten the grace."""
        if job.stop_cause is None:
            job = self.emit("stop_requested", job.id, stop_cause=cause, stop_grace_ms=grace_ms, stop_by=by, reason=why)
        elif job.stop_grace_ms is not None and grace_ms < job.stop_grace_ms:
            job = self.emit("stop_requested", job.id, stop_grace_ms=grace_ms)
        else:
            return job
        assert job.stop_cause is not None
        self.commands.append(StopAttempt(job.attempt_key, job.stop_cause, grace_ms))
        return job

    def clean(self, job: Job) -> None:
        self.commands.append(CleanAttempt(job.attempt_key))

    def settle_dependents(self, ended: Job) -> None:
        """A job ended for good: who waited for it may go on, or never can. Follows the chain to its end."""
        todo = [ended]
        while todo:
            done = todo.pop()
            for job_id in sorted(self.state.dependents.get(done.id, ())):
                job = self.state.jobs[job_id]
                mine = [dependency for dependency in job.dependencies if dependency.job_id == done.id]
                if all(dependency.holds(done.state) for dependency in mine):
                    rest = tuple(d for d in job.dependencies if d.job_id != done.id)
                    job = self.emit("dependency_met", job_id, dependencies=rest)
                    self.become_eligible(job)
                else:
                    why = reason("dependency_never", first=done.id, state=done.state.value)
                    todo.append(self.end("cancelled", job, JobState.CANCELLED, why))

    def become_eligible(self, job: Job) -> Job:
        """Marks a waiting job eligible once neither a dependency nor its begin keeps it."""
        if job.state is not JobState.PENDING or job.eligible_ms is not None or job.dependencies:
            return job
        if job.begin_ms is not None and job.begin_ms > self.now:
            return job
        return self.emit("eligible", job.id, eligible_ms=self.now)

    def requeue(self, job: Job, *, retries_left: int, by: str | None = None) -> Job:
        """The ended job waits again as its next attempt; nothing of the former attempt stays in the row."""
        assert job.state in ENDED
        return self.emit(
            "requeued",
            job.id,
            state=JobState.PENDING,
            attempt=job.attempt + 1,
            retries_left=retries_left,
            allocation=None,
            supervisor=None,
            leader=None,
            started_ms=None,
            finished_ms=None,
            exit_code=None,
            signal=None,
            stop_cause=None,
            xid=None,
            stop_grace_ms=None,
            stop_by=by,
            reason=None,
            starts_refused=0,
            begin_ms=None,
            eligible_ms=self.now,
        )
