"""Supervisors and their jobs in virtual time, with the promises of engine.ports.Runtime.

A key is claimed at most once, and never after it was revoked. An attempt outlives the daemon. Counts every
start, which is what the checkers hold the engine to.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from courtier.domain.attempts import AttemptKey, AttemptPhase, AttemptStatus, ProcessIdentity, StopCause
from courtier.domain.workloads import Job

P = AttemptPhase
LIVING = frozenset({P.CLAIMED, P.RUNNING, P.COMPLETING})


@dataclass(slots=True)
class Attempt:
    """One spawn as it really is; `status` is what an observer would see."""

    job: Job
    status: AttemptStatus
    stop: StopCause | None = None
    boot_id: str = ""
    traces: bool = True


@dataclass(slots=True)
class Processes:
    """after() runs an action later; notice() tells the daemon; reached() marks a point of a job's life."""

    after: Callable[[int, Callable[[], None]], None]
    notice: Callable[[AttemptStatus], None]
    reached: Callable[[str, int], None]
    now: Callable[[], int]
    delay: Callable[[], int]
    plan: Callable[[Job], tuple[int, int]]
    boot_id: str
    attempts: dict[AttemptKey, Attempt] = field(default_factory=dict)
    starts: dict[tuple[int, int], int] = field(default_factory=dict)
    started: dict[int, int] = field(default_factory=dict)
    refuse_next: bool = False

    def start(self, job: Job) -> None:
        key = job.attempt_key
        if key in self.attempts:
            return
        attempt = Attempt(job, AttemptStatus(key, P.ABSENT), boot_id=self.boot_id)
        self.attempts[key] = attempt
        self.after(self.delay(), lambda: self._claim(attempt))

    def _goes_on(self, attempt: Attempt, phase: AttemptPhase) -> bool:
        return attempt.status.phase is phase and attempt.boot_id == self.boot_id

    def _show(self, attempt: Attempt, **changes: object) -> None:
        attempt.status = replace(attempt.status, **changes)  # type: ignore[arg-type]
        self.notice(attempt.status)

    def _claim(self, attempt: Attempt) -> None:
        if not self._goes_on(attempt, P.ABSENT) or not attempt.traces:
            return
        if self.refuse_next:
            self.refuse_next = False
            self._show(attempt, phase=P.REFUSED, error="no space left on device")
            return
        number = len(self.attempts) + 100
        self._show(attempt, phase=P.CLAIMED, supervisor=ProcessIdentity(self.boot_id, number, 1))
        self.reached("spawned", attempt.job.id)
        self.after(self.delay(), lambda: self._run(attempt))

    def _run(self, attempt: Attempt) -> None:
        if not self._goes_on(attempt, P.CLAIMED):
            return
        if attempt.stop is not None:
            self._end(attempt)
            return
        name = (attempt.job.id, attempt.job.attempt)
        self.starts[name] = self.starts.get(name, 0) + 1
        self.started[attempt.job.id] = self.started.get(attempt.job.id, 0) + 1
        duration_ms, exit_code = self.plan(attempt.job)
        supervisor = attempt.status.supervisor
        assert supervisor is not None
        leader = replace(supervisor, pid=supervisor.pid + 100_000)
        self._show(attempt, phase=P.RUNNING, leader=leader, started_ms=self.now())
        self.reached("running", attempt.job.id)
        self.after(duration_ms, lambda: self._exit(attempt, exit_code=exit_code))

    def _exit(self, attempt: Attempt, *, exit_code: int | None, signal: int | None = None) -> None:
        if not self._goes_on(attempt, P.RUNNING):
            return
        self._show(attempt, phase=P.COMPLETING, exit_code=exit_code, signal=signal, stop_cause=attempt.stop)
        self.reached("exiting", attempt.job.id)
        self.after(self.delay(), lambda: self._end(attempt))

    def _end(self, attempt: Attempt) -> None:
        if attempt.status.phase not in LIVING or attempt.boot_id != self.boot_id:
            return
        self._show(attempt, phase=P.ENDED, finished_ms=self.now(), stop_cause=attempt.status.stop_cause or attempt.stop)
        self.reached("finished", attempt.job.id)

    def stop(self, key: AttemptKey, cause: StopCause) -> None:
        attempt = self.attempts.get(key)
        if attempt is not None and attempt.stop is None and attempt.status.phase in (P.ABSENT, P.CLAIMED, P.RUNNING):
            attempt.stop = cause
            self.after(self.delay(), lambda: self._exit(attempt, exit_code=None, signal=15))

    def revoke(self, key: AttemptKey) -> AttemptStatus:
        attempt = self.attempts.get(key)
        if attempt is None:
            # Never asked for: from here on nobody may ask for it.
            return AttemptStatus(key, P.REVOKED)
        if attempt.status.phase is P.ABSENT:
            attempt.status = AttemptStatus(key, P.REVOKED)
        return self.seen(attempt)

    def seen(self, attempt: Attempt) -> AttemptStatus:
        """What an observer of this boot sees."""
        status = attempt.status
        if attempt.boot_id != self.boot_id and status.phase in LIVING:
            return replace(status, phase=P.VANISHED)
        if attempt.boot_id != self.boot_id and status.phase is P.ABSENT:
            return AttemptStatus(status.key, P.REVOKED)
        return status

    def observe(self, key: AttemptKey) -> AttemptStatus:
        attempt = self.attempts.get(key)
        if attempt is None or not attempt.traces:
            return AttemptStatus(key, P.REVOKED)
        return self.seen(attempt)

    def clean(self, key: AttemptKey) -> None:
        attempt = self.attempts.get(key)
        if attempt is not None:
            attempt.traces = False
            self.reached("cleaned", attempt.job.id)

    def kill_supervisor(self, job_id: int) -> None:
        """kill -9: the tree dies with it; what was recorded stays."""
        for attempt in self.attempts.values():
            if attempt.job.id == job_id and attempt.status.phase in LIVING and attempt.boot_id == self.boot_id:
                self._show(attempt, phase=P.VANISHED)

    def reboot(self, boot_id: str) -> None:
        self.boot_id = boot_id

    def memory_of(self, uuid: str) -> tuple[tuple[int, int], ...]:
        """(job, bytes) of every living process tree on a GPU."""
        found = []
        for attempt in self.attempts.values():
            living = attempt.status.phase in (P.RUNNING, P.COMPLETING) and attempt.boot_id == self.boot_id
            if living and attempt.job.allocation is not None:
                shares = [share for share in attempt.job.allocation.devices if share.uuid == uuid]
                found += [(attempt.job.id, share.memory_bytes) for share in shares]
        return tuple(found)
