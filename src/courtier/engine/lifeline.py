"""From the look of an attempt to the life of its job: one function for notices, sweeps and recovery.

Idempotent and monotone: an old, repeated or foreign status changes nothing. Never acts on an attempt
other than the row's current one.
"""

from courtier.domain.attempts import AttemptPhase, AttemptStatus
from courtier.domain.lifecycle import HOLDING, JobState
from courtier.domain.reasons import reason
from courtier.domain.workloads import Job
from courtier.engine.commands import CleanAttempt, RevokeAttempt, StartAttempt, StopAttempt
from courtier.engine.turn import Turn
from courtier.engine.verdict import Verdict, judge


def attempt_reported(turn: Turn, status: AttemptStatus) -> None:
    """Draws the conclusions from one status."""
    job = turn.state.jobs.get(status.key.job_id)
    if job is None or job.state not in HOLDING or job.attempt_key != status.key:
        _forget_stale(turn, status)
        return
    match status.phase:
        case AttemptPhase.ABSENT | AttemptPhase.CLAIMED:
            return
        case AttemptPhase.REVOKED:
            _start_undone(turn, job, "start_revoked", None)
        case AttemptPhase.REFUSED:
            _start_undone(turn, job, "start_refused", status.error or "no reason given")
        case AttemptPhase.RUNNING:
            _started(turn, job, status)
        case AttemptPhase.COMPLETING:
            _exited(turn, _started(turn, job, status), status)
        case AttemptPhase.ENDED | AttemptPhase.VANISHED:
            _ended(turn, job, status)


def _forget_stale(turn: Turn, status: AttemptStatus) -> None:
    """An attempt that no row holds: its traces go once it has ended, and an unclaimed start is fenced off.
    A living one is left alone: its row may be on its way back (a store restored from a copy), and a
    user's work is in it."""
    if status.phase is AttemptPhase.ABSENT:
        turn.commands.append(RevokeAttempt(status.key))
    if status.phase in (AttemptPhase.ENDED, AttemptPhase.VANISHED, AttemptPhase.REVOKED, AttemptPhase.REFUSED):
        turn.commands.append(CleanAttempt(status.key))


def _started(turn: Turn, job: Job, status: AttemptStatus) -> Job:
    if job.state is not JobState.STARTING or status.started_ms is None:
        return job
    allocation = job.allocation
    return turn.emit(
        "started",
        job.id,
        state=JobState.RUNNING,
        started_ms=status.started_ms,
        supervisor=status.supervisor,
        leader=status.leader,
        allocation=allocation,
        starts_refused=0,
    )


def _exited(turn: Turn, job: Job, status: AttemptStatus) -> Job:
    if job.state is JobState.COMPLETING:
        return job
    return turn.emit("exited", job.id, state=JobState.COMPLETING, exit_code=status.exit_code, signal=status.signal)


def _start_undone(turn: Turn, job: Job, kind: str, error: str | None) -> None:
    """Nothing ran: the job waits again under the same attempt, or is given up after too many refusals."""
    turn.clean(job)
    if job.stop_cause is not None:
        by = job.stop_by or job.spec.user
        ended = turn.end("cancelled", job, JobState.CANCELLED, reason("cancelled_by_user", user=by))
        turn.settle_dependents(ended)
        return
    if error is None:
        turn.emit(kind, job.id, state=JobState.PENDING, allocation=None)
        return
    tries = job.starts_refused + 1
    if tries >= turn.limits.starts_refused_max:
        why = reason("start_refused", tries=tries, error=error)
        job = turn.emit(kind, job.id, state=JobState.FAILED, starts_refused=tries, reason=why, finished_ms=turn.now)
        turn.settle_dependents(job)
        return
    pause_ms = turn.limits.start_backoff_ms << (tries - 1)
    turn.emit(
        kind,
        job.id,
        state=JobState.PENDING,
        allocation=None,
        starts_refused=tries,
        eligible_ms=None,
        begin_ms=turn.now + pause_ms,
        reason=reason("start_retry", tries=tries, tries_max=turn.limits.starts_refused_max, error=error),
    )


def _ended(turn: Turn, job: Job, status: AttemptStatus) -> None:
    job = _started(turn, job, status)
    if job.state is JobState.RUNNING and (status.exit_code is not None or status.signal is not None):
        job = _exited(turn, job, status)
    verdict = judge(job, status, boot_id=turn.boot_id)
    turn.clean(job)
    job = _close(turn, job, status, verdict)
    if verdict.requeue:
        turn.requeue(job, retries_left=job.retries_left)
    elif verdict.cause in job.spec.retry_on and job.retries_left > 0:
        turn.requeue(job, retries_left=job.retries_left - 1)
    else:
        turn.settle_dependents(job)


def _close(turn: Turn, job: Job, status: AttemptStatus, verdict: Verdict) -> Job:
    kind = {
        JobState.CANCELLED: "cancelled",
        JobState.LOST: "lost",
        JobState.PREEMPTED: "preempted",
    }.get(verdict.state, "finished")
    # A job that died with its supervisor, or before it ran, has no `completing` to pass through.
    if job.state is JobState.RUNNING and kind == "finished":
        job = _exited(turn, job, status)
    if job.state is JobState.STARTING and verdict.state in (
        JobState.COMPLETED,
        JobState.OUT_OF_MEMORY,
        JobState.PREEMPTED,
    ):
        job = turn.emit("exited", job.id, state=JobState.COMPLETING, exit_code=status.exit_code, signal=status.signal)
    return turn.emit(
        kind,
        job.id,
        state=verdict.state,
        reason=verdict.reason,
        finished_ms=status.finished_ms or turn.now,
        memory_bytes_peak=status.memory_bytes_peak,
        cpu_ms=status.cpu_ms,
        log_truncated=status.log_truncated,
    )


def recover(turn: Turn) -> None:
    """After a restart: repeats what the former daemon may not have got to. Every command here is safe to repeat."""
    for job in list(turn.state.holding.values()):
        if job.stop_cause is not None:
            grace_ms = job.stop_grace_ms if job.stop_grace_ms is not None else job.spec.grace_ms
            turn.commands.append(StopAttempt(job.attempt_key, job.stop_cause, grace_ms))
        if job.state is JobState.STARTING:
            turn.commands.append(RevokeAttempt(job.attempt_key))


def revoke_overdue(turn: Turn) -> None:
    """Starts that nobody took up within the deadline are fenced off; the answer says what is really there."""
    for job in list(turn.state.holding.values()):
        if job.state is not JobState.STARTING or job.allocation is None:
            continue
        if turn.now - job.allocation.placed_ms >= turn.limits.spawn_deadline_ms:
            turn.commands.append(RevokeAttempt(job.attempt_key))


def place(turn: Turn, job: Job, allocation: object) -> None:
    """Gives the allocation and asks for a supervisor; the start follows the commit."""
    job = turn.emit("placed", job.id, state=JobState.STARTING, allocation=allocation, spawn=job.spawn + 1, reason=None)
    turn.commands.append(StartAttempt(job))
