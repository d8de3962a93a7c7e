"""What an ended attempt means for its job: one table of causes, in order of precedence.

out_of_memory comes from the cgroup's own count, from our own watch or from GPU memory, and is never
guessed from signal 9.
"""

import signal as signals
from dataclasses import dataclass

from courtier.domain.attempts import AttemptPhase, AttemptStatus, StopCause
from courtier.domain.lifecycle import JobState
from courtier.domain.reasons import Reason, reason
from courtier.domain.workloads import Job, RetryCause
from courtier.metering.xids import xid_words


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the attempt ended; cause names what a retry may ask for, None where nothing is to be retried."""

    state: JobState
    reason: Reason | None
    cause: RetryCause | None = None
    requeue: bool = False


def judge(job: Job, status: AttemptStatus, *, boot_id: str) -> Verdict:
    """The verdict of an ENDED or VANISHED attempt."""
    stopped = _judge_stop(job, status)
    if stopped is not None:
        return stopped
    if status.exit_code is None and status.signal is None:
        if status.phase is AttemptPhase.ENDED and status.error is not None:
            return Verdict(JobState.FAILED, reason("not_started", error=status.error), RetryCause.FAILED)
        rebooted = job.allocation is not None and job.allocation.boot_id != boot_id
        code = "node_rebooted" if rebooted else "supervisor_lost"
        return Verdict(JobState.LOST, reason(code), RetryCause.NODE_LOST)
    return _judge_exit(job, status)


def _judge_stop(job: Job, status: AttemptStatus) -> Verdict | None:
    # A supervisor that died took the knowledge of its stop along; the row still has what was asked for.
    unknown = status.exit_code is None and status.signal is None
    cause = status.stop_cause or (job.stop_cause if unknown else None)
    limit_ms = job.spec.request.time_limit_ms or 0
    match cause:
        case StopCause.CANCEL:
            return Verdict(JobState.CANCELLED, reason("cancelled_by_user", user=job.stop_by or job.spec.user))
        case StopCause.CLIENT_GONE:
            return Verdict(JobState.CANCELLED, reason("client_gone"))
        case StopCause.TIME_LIMIT:
            return Verdict(JobState.TIMEOUT, reason("time_limit", limit_ms=limit_ms), RetryCause.TIMEOUT)
        case StopCause.PREEMPT:
            return Verdict(JobState.PREEMPTED, reason("preempted"), requeue=True)
        case StopCause.REQUEUE:
            return Verdict(
                JobState.CANCELLED, reason("cancelled_by_user", user=job.stop_by or job.spec.user), requeue=True
            )
        case StopCause.MEMORY_WATCH:
            limit = job.spec.request.memory_bytes or 0
            return Verdict(JobState.OUT_OF_MEMORY, reason("memory_watch", limit_bytes=limit), RetryCause.OOM)
        case StopCause.GPU_MEMORY:
            declared = job.spec.request.gpu_memory_bytes or 0
            used = max(job.spec.memory_bytes_simulated or 0, declared)
            return Verdict(
                JobState.OUT_OF_MEMORY,
                job.reason or reason("gpu_memory_overuse", used_bytes=used, declared_bytes=declared),
                RetryCause.OOM,
            )
        case StopCause.DEVICE_LOST:
            return Verdict(JobState.LOST, reason("gpu_lost"), RetryCause.GPU_LOST)
    return None


def _judge_exit(job: Job, status: AttemptStatus) -> Verdict:
    if status.exit_code == 0:
        return Verdict(JobState.COMPLETED, None)
    if status.oom_kills:
        limit = job.spec.request.memory_bytes or 0
        return Verdict(
            JobState.OUT_OF_MEMORY,
            reason("memory_limit", oom_kills=status.oom_kills, limit_bytes=limit),
            RetryCause.OOM,
        )
    if job.xid is not None and status.error is None:
        outcome = f"exit code {status.exit_code}" if status.signal is None else f"signal {status.signal}"
        why = reason("failed_after_xid", outcome=outcome, xid=job.xid, words=xid_words(job.xid))
        return Verdict(JobState.FAILED, why, RetryCause.FAILED)
    if status.error is not None:
        return Verdict(JobState.FAILED, reason("not_started", error=status.error), RetryCause.FAILED)
    if status.signal is not None:
        name = _signal_name(status.signal)
        return Verdict(
            JobState.FAILED, reason("killed_by_signal", signal=status.signal, signal_name=name), RetryCause.FAILED
        )
    return Verdict(JobState.FAILED, reason("nonzero_exit", exit_code=status.exit_code or 0), RetryCause.FAILED)


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"SIG{number}"
