"""What users ask for: each request is answered in the same step, whole or not at all.

A request names jobs that are live, or that the shell loaded for this step. Must never leave a request
without a reply.
"""

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

from courtier.domain.attempts import StopCause
from courtier.domain.lifecycle import ENDED, JobState
from courtier.domain.reasons import Reason, reason
from courtier.domain.workloads import Job, Request
from courtier.engine.commands import LimitAttempt, SignalAttempt
from courtier.engine.stimuli import (
    ChangeAsked,
    HoldAsked,
    ReleaseAsked,
    RequeueAsked,
    SignalAsked,
    StopAsked,
    SubmitAsked,
)
from courtier.engine.turn import Reply, Turn
from courtier.placement.feasible import gpus_wanted, impossible, isolation_refusal

_REQUEST_FIELDS = frozenset(field.name for field in fields(Request))
_SPEC_FIELDS = frozenset({"name", "queue", "comment"})


def submit(turn: Turn, asked: SubmitAsked) -> Reply:
    """Accepts a job or an array. A known key answers with the job that has it."""
    known = asked.known_key_job
    if asked.spec.key is not None:
        known = turn.state.keys.get((asked.spec.user, asked.spec.key), known)
    if known is not None and not asked.dry_run:
        job = turn.state.jobs.get(known)
        return Reply(_array_of(turn, job) if job else (), existing=True)
    refusal = _submit_refusal(turn, asked)
    if refusal is not None:
        return Reply(refusal=refusal)
    broken = _broken_dependency(turn, asked)
    jobs = []
    for job in _new_jobs(turn, asked):
        if not asked.dry_run:
            job = turn.emit_submitted(job)
            if broken is not None:
                job = turn.end("cancelled", job, JobState.CANCELLED, broken)
            else:
                job = turn.become_eligible(job)
        jobs.append(job)
    if not asked.dry_run:
        turn.payloads[asked.spec.payload_sha256] = asked.payload
    return Reply(tuple(jobs))


def _submit_refusal(turn: Turn, asked: SubmitAsked) -> Reason | None:
    if turn.limits.watch_only:
        return reason("watch_only")
    size = len(asked.array) if asked.array is not None else 1
    if size > turn.limits.array_size_max:
        return reason("array_too_large", size=size, limit=turn.limits.array_size_max)
    if len(turn.state.jobs) + size > turn.limits.jobs_active_max:
        return reason("queue_full", jobs=len(turn.state.jobs), limit=turn.limits.jobs_active_max)
    wanted, most = gpus_wanted(asked.spec.request), turn.limits.user_gpus_max
    if most and wanted > most:
        return reason("user_gpus_exceed", gpus=wanted, limit=most)
    mine = turn.state.user_jobs.get(asked.spec.user, 0)
    if mine + size > turn.limits.user_jobs_active_max:
        return reason("user_jobs", user=asked.spec.user, jobs=mine, limit=turn.limits.user_jobs_active_max)
    for dependency in asked.dependencies:
        if dependency.job_id not in turn.state.jobs and dependency.job_id not in (asked.ended or {}):
            return reason("dependency_unknown", job=dependency.job_id)
    refusal = isolation_refusal(asked.spec.isolation, turn.box)
    if refusal is not None:
        return refusal
    return impossible(asked.spec.request, turn.box)


def _ended_as(turn: Turn, asked: SubmitAsked, job_id: int) -> JobState | None:
    """How a job ended; None while it lives. It may have ended in this very step, and is then still in the state."""
    job = turn.state.jobs.get(job_id)
    if job is None:
        return (asked.ended or {}).get(job_id)
    return job.state if job.state in ENDED else None


def _broken_dependency(turn: Turn, asked: SubmitAsked) -> Reason | None:
    for dependency in asked.dependencies:
        ended_as = _ended_as(turn, asked, dependency.job_id)
        if ended_as is not None and not dependency.holds(ended_as):
            return reason("dependency_never", first=dependency.job_id, state=ended_as.value)
    return None


def _new_jobs(turn: Turn, asked: SubmitAsked) -> Iterable[Job]:
    first = turn.state.next_id
    array_id = None
    indices: tuple[int | None, ...] = (None,)
    if asked.array is not None:
        array_id, first, indices = first, first + 1, asked.array
    open_dependencies = tuple(d for d in asked.dependencies if _ended_as(turn, asked, d.job_id) is None)
    for place, index in enumerate(indices):
        yield Job(
            id=first + place,
            spec=asked.spec,
            state=JobState.HELD if asked.hold else JobState.PENDING,
            priority=asked.priority,
            submitted_ms=turn.now,
            array_id=array_id,
            array_index=index,
            array_limit=asked.array_limit,
            array_size=len(indices) if array_id is not None else None,
            begin_ms=asked.begin_ms,
            eligible_ms=None,
            dependencies=open_dependencies,
            retries_left=asked.retries,
        )


def _array_of(turn: Turn, job: Job) -> tuple[Job, ...]:
    if job.array_id is None:
        return (job,)
    return tuple(turn.state.jobs[member] for member in sorted(turn.state.array_members.get(job.array_id, ())))


def stop(turn: Turn, asked: StopAsked) -> Reply:
    """Cancel: a waiting job ends at once, a started one is asked to."""

    def one(job: Job) -> Job | Reason:
        if job.state in ENDED:
            return reason("job_ended", job=job.id, state=job.state.value)
        if job.state in (JobState.PENDING, JobState.HELD):
            job = turn.end("cancelled", job, JobState.CANCELLED, reason("cancelled_by_user", user=asked.by))
            turn.settle_dependents(job)
            return job
        grace_ms = 0 if asked.skip_grace else job.spec.grace_ms
        return turn.stop(job, asked.cause, by=asked.by, grace_ms=grace_ms)

    return _each(turn, asked.targets, one)


def send_signal(turn: Turn, asked: SignalAsked) -> Reply:
    def one(job: Job) -> Job | Reason:
        if job.state in ENDED:
            return reason("job_ended", job=job.id, state=job.state.value)
        if job.state not in (JobState.RUNNING, JobState.COMPLETING):
            return reason("job_not_ended", job=job.id, state=job.state.value)
        turn.commands.append(SignalAttempt(job.attempt_key, asked.number))
        return job

    return _each(turn, asked.targets, one)


def hold(turn: Turn, asked: HoldAsked) -> Reply:
    def one(job: Job) -> Job | Reason:
        if job.state is JobState.HELD:
            return job
        if job.state is not JobState.PENDING:
            return reason("job_not_waiting", job=job.id, state=job.state.value)
        return turn.emit("held", job.id, state=JobState.HELD)

    return _each(turn, asked.targets, one)


def release(turn: Turn, asked: ReleaseAsked) -> Reply:
    def one(job: Job) -> Job | Reason:
        if job.state is JobState.PENDING:
            return job
        if job.state is not JobState.HELD:
            return reason("job_not_waiting", job=job.id, state=job.state.value)
        return turn.become_eligible(turn.emit("released", job.id, state=JobState.PENDING))

    return _each(turn, asked.targets, one)


def requeue(turn: Turn, asked: RequeueAsked) -> Reply:
    """An ended job waits again as its next attempt; a started one is stopped first."""

    def one(job: Job) -> Job | Reason:
        if job.state in ENDED:
            return turn.requeue(job, retries_left=job.retries_left, by=asked.by)
        if job.state in (JobState.PENDING, JobState.HELD):
            return reason("job_not_ended", job=job.id, state=job.state.value)
        return turn.stop(job, StopCause.REQUEUE, by=asked.by, grace_ms=job.spec.grace_ms)

    return _each(turn, asked.targets, one)


def change(turn: Turn, asked: ChangeAsked) -> Reply:
    """Waiting jobs take every change; a running one takes its time limit, priority and comment."""

    def one(job: Job) -> Job | Reason:
        if job.state in ENDED:
            return reason("job_ended", job=job.id, state=job.state.value)
        wanted = dict(asked.changes)
        waiting = job.state in (JobState.PENDING, JobState.HELD)
        if not waiting and set(wanted) - {"time_limit_ms", "priority", "comment", "name", "array_limit"}:
            return reason("job_not_waiting", job=job.id, state=job.state.value)
        request = replace(job.spec.request, **{k: v for k, v in wanted.items() if k in _REQUEST_FIELDS})
        refusal = impossible(request, turn.box)
        if refusal is not None:
            return refusal
        job = turn.emit("changed" if waiting else "time_limit_changed", job.id, **_row_changes(job, request, wanted))
        if not waiting and "time_limit_ms" in wanted:
            turn.commands.append(LimitAttempt(job.attempt_key, request.time_limit_ms))
        return turn.become_eligible(job)

    return _each(turn, asked.targets, one)


def _row_changes(job: Job, request: Request, wanted: dict[str, Any]) -> dict[str, Any]:
    spec = replace(job.spec, request=request, **{k: v for k, v in wanted.items() if k in _SPEC_FIELDS})
    changes: dict[str, Any] = {k: v for k, v in wanted.items() if k in ("priority", "begin_ms", "array_limit")}
    if spec != job.spec:
        changes["spec"] = spec
    if "begin_ms" in changes:
        changes["eligible_ms"] = None
    return changes


def restore(turn: Turn, uuids: tuple[str, ...]) -> Reply:
    """Takes GPUs back that were set aside; what still ails them sets them aside again at the next reading."""
    for uuid in uuids:
        if uuid in turn.state.quarantines:
            turn.restore_device(uuid)
    return Reply()


def _each(turn: Turn, targets: tuple[int, ...], one: Callable[[Job], Job | Reason]) -> Reply:
    """Every target is tried; the answer is a refusal only when none could be served."""
    done: list[Job] = []
    refusals: list[Reason] = []
    for job_id in targets:
        job = turn.state.jobs.get(job_id)
        outcome = reason("job_unknown", job=job_id) if job is None else one(job)
        if isinstance(outcome, Reason):
            refusals.append(outcome)
        else:
            done.append(outcome)
    if refusals and not done:
        return Reply(refusal=refusals[0])
    return Reply(tuple(done))
