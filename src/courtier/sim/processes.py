"""Supervisors and their jobs in virtual time, with the promises of engine.ports.Runtime.

A key is claimed at most once, and never after it was revoked. An attempt outlives the daemon. Counts every
start, which is what the checkers hold the engine to. A supervisor hears of a wish a moment later, so a job may
end by itself in between. Must never promise more than tests/contract asks of the real one.
"""

import signal as signals
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from courtier.domain.attempts import AttemptKey, AttemptPhase, AttemptStatus, ProcessIdentity, StopCause
from courtier.domain.workloads import Job

P = AttemptPhase
LIVING = frozenset({P.CLAIMED, P.RUNNING, P.COMPLETING})


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a job's process does: ends after duration_ms with exit_code, or by `signal` where that is named.

    ignores      signals that do nothing to it
    term_code    it answers SIGTERM by ending with this code; None: SIGTERM ends it
    """

    duration_ms: int
    exit_code: int = 0
    signal: int | None = None
    ignores: frozenset[int] = frozenset()
    term_code: int | None = None


@dataclass(slots=True)
class Attempt:
    """One spawn as it really is; `status` is what an observer would see.

    wanted is the stop that lies ready for a supervisor that has not started the job; stop is what it acted on;
    stopping: the one TERM of a stop is out, or was skipped.
    """

    job: Job
    status: AttemptStatus
    limit_ms: int | None
    wanted: StopCause | None = None
    stop: StopCause | None = None
    stopping: bool = False
    behaviour: Behaviour | None = None
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
    plan: Callable[[Job], Behaviour]
    boot_id: str
    attempts: dict[AttemptKey, Attempt] = field(default_factory=dict)
    starts: dict[tuple[int, int], int] = field(default_factory=dict)
    started: dict[int, int] = field(default_factory=dict)
    revoked: set[AttemptKey] = field(default_factory=set)
    refuse_next: bool = False

    def start(self, job: Job) -> None:
        key = job.attempt_key
        if key in self.attempts or key in self.revoked:
            return
        limit_ms = job.spec.request.time_limit_ms
        attempt = Attempt(job, AttemptStatus(key, P.ABSENT), limit_ms, boot_id=self.boot_id)
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
        if attempt.wanted is not None:
            attempt.stop = attempt.wanted
            self._end(attempt)
            return
        name = (attempt.job.id, attempt.job.attempt)
        self.starts[name] = self.starts.get(name, 0) + 1
        self.started[attempt.job.id] = self.started.get(attempt.job.id, 0) + 1
        behaviour = attempt.behaviour = self.plan(attempt.job)
        supervisor = attempt.status.supervisor
        assert supervisor is not None
        leader = replace(supervisor, pid=supervisor.pid + 100_000)
        self._show(attempt, phase=P.RUNNING, leader=leader, started_ms=self.now())
        self.reached("running", attempt.job.id)
        code = behaviour.exit_code if behaviour.signal is None else None
        self.after(behaviour.duration_ms, lambda: self._exit(attempt, exit_code=code, signal=behaviour.signal))
        self._arm(attempt)

    def _exit(self, attempt: Attempt, *, exit_code: int | None = None, signal: int | None = None) -> None:
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

    def _deliver(self, attempt: Attempt, number: int) -> None:
        """One signal reaches the job's process."""
        behaviour = attempt.behaviour
        if behaviour is None or (number in behaviour.ignores and number != signals.SIGKILL):
            return
        if number == signals.SIGTERM and behaviour.term_code is not None:
            self._exit(attempt, exit_code=behaviour.term_code)
        else:
            self._exit(attempt, signal=number)

    def _known(self, key: AttemptKey) -> Attempt | None:
        attempt = self.attempts.get(key)
        return attempt if attempt is not None and attempt.traces and attempt.boot_id == self.boot_id else None

    def stop(self, key: AttemptKey, cause: StopCause, *, grace_ms: int) -> None:
        attempt = self._known(key)
        if attempt is not None and attempt.status.phase in (P.ABSENT, P.CLAIMED, P.RUNNING):
            wanted = attempt.wanted = attempt.wanted or cause
            self.after(self.delay(), lambda: self._stop(attempt, wanted, grace_ms))

    def _stop(self, attempt: Attempt, cause: StopCause, grace_ms: int) -> None:
        """The supervisor acts on it: TERM now, KILL after the grace; a repeat only shortens it."""
        if not self._goes_on(attempt, P.RUNNING):
            return
        attempt.stop = attempt.stop or cause
        first, attempt.stopping = not attempt.stopping, True
        if first and grace_ms > 0:
            self._deliver(attempt, signals.SIGTERM)
        self.after(grace_ms, lambda: self._deliver(attempt, signals.SIGKILL))

    def signal(self, key: AttemptKey, number: int, *, leader_only: bool) -> bool:
        attempt = self._known(key)
        phases = (P.RUNNING,) if leader_only else (P.RUNNING, P.COMPLETING)
        if attempt is None or attempt.status.phase not in phases:
            return False
        self._deliver(attempt, number)
        return True

    def set_time_limit(self, key: AttemptKey, time_limit_ms: int | None) -> None:
        attempt = self._known(key)
        if attempt is not None:
            attempt.limit_ms = time_limit_ms
            self.after(self.delay(), lambda: self._arm(attempt))

    def _arm(self, attempt: Attempt) -> None:
        """The limit counts from the start; a later change makes this one void."""
        limit_ms, started_ms = attempt.limit_ms, attempt.status.started_ms
        if limit_ms is None or started_ms is None:
            return

        def reached() -> None:
            if attempt.limit_ms == limit_ms:
                self._stop(attempt, StopCause.TIME_LIMIT, attempt.job.spec.grace_ms)

        self.after(max(0, started_ms + limit_ms - self.now()), reached)

    def revoke(self, key: AttemptKey) -> AttemptStatus:
        attempt = self.attempts.get(key)
        if attempt is None or not attempt.traces:
            # Never asked for: from here on nobody may ask for it.
            self.revoked.add(key)
            return AttemptStatus(key, P.REVOKED)
        if attempt.status.phase is P.ABSENT:
            attempt.status = AttemptStatus(key, P.REVOKED)
        return self.seen(attempt)

    def seen(self, attempt: Attempt) -> AttemptStatus:
        """What an observer of this boot sees. A start that nobody took up stays absent over a boot."""
        status = attempt.status
        if attempt.boot_id != self.boot_id and status.phase in LIVING:
            return replace(status, phase=P.VANISHED)
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
