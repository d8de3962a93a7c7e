"""A box in virtual time: the shipping loop, a store, processes and GPUs, and the shell between them.

A heap of (instant, sequence, action); the clock jumps to the next. All chance comes from one seed, split by
purpose. The shell here keeps the daemon's order: step, commit, then commands and answers.
"""

import heapq
import random
from collections.abc import Callable
from typing import Any

from courtier.domain.attempts import AttemptStatus, StopCause
from courtier.domain.devices import Box, Device, Reading
from courtier.domain.workloads import (
    Dependency,
    DependencyKind,
    Job,
    JobSpec,
    Request,
    RetryCause,
    WorkloadClass,
)
from courtier.engine.commands import (
    CleanAttempt,
    Command,
    LimitAttempt,
    ReadDevices,
    RevokeAttempt,
    SignalAttempt,
    StartAttempt,
    StopAttempt,
)
from courtier.engine.loop import Loop, Outcome
from courtier.engine.ports import PortError
from courtier.engine.state import State
from courtier.engine.stimuli import (
    AttemptReported,
    DevicesRead,
    RequeueAsked,
    Stimulus,
    StopAsked,
    SubmitAsked,
    Ticked,
)
from courtier.sim import checkers
from courtier.sim.processes import Behaviour, Processes
from courtier.sim.store import MemoryStore

GIB = 1 << 30
SWEEP_MS = 5_000
RECLAIM_READ_MS = 20
DEVICES = 4


def simulated_box() -> Box:
    devices = tuple(Device(f"GPU-{n}", n, "A100-80GB", 80 * GIB, GIB // 2, n // 2) for n in range(DEVICES))
    return Box("sim", 32, 256 * GIB, devices, simulated=f"{DEVICES}xA100-80GB")


class World:
    """on_point(point, job_id) is called when a job reaches a point of its life; faults hook in there."""

    def __init__(self, seed: int, *, loop_class: type[Loop] = Loop, store: MemoryStore | None = None) -> None:
        self.seed = seed
        self.now = 1_000_000
        self.box = simulated_box()
        self.store = store or MemoryStore()
        self.loop_class = loop_class
        self.trace: list[str] = []
        self.acknowledged: set[int] = set()
        self.codes: dict[int, int] = {}
        self.on_point: Callable[[str, int], None] = lambda _point, _job: None
        self.drop_notices = self.double_notices = 0
        self.late_notice_ms = 0
        self.crash_after_commands: int | None = None
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._rng: dict[str, random.Random] = {}
        self._history = checkers.HistoryChecker()
        self._token = 0
        self._boots = 0
        self.processes = Processes(
            after=self.after,
            notice=self._notice,
            reached=self._reached,
            now=lambda: self.now,
            delay=lambda: self.rng("delay").randint(1, 40),
            plan=self._plan_of,
            boot_id="boot-0",
        )
        self._inbox: list[Stimulus] = []
        self._frozen = False
        self._life = 0
        self.loop: Loop | None = None
        self.start_daemon()

    # Chance and time ------------------------------------------------------------------------------

    def rng(self, purpose: str) -> random.Random:
        """One source for each purpose, so that a draw more here changes nothing there."""
        if purpose not in self._rng:
            self._rng[purpose] = random.Random(f"{self.seed}/{purpose}")
        return self._rng[purpose]

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + delay_ms, self._sequence, action))

    def run(self, until_ms: int) -> None:
        """Jumps from action to action."""
        while self._heap and self._heap[0][0] <= until_ms:
            at, _, action = heapq.heappop(self._heap)
            self.now = max(self.now, at)
            action()
        self.now = max(self.now, until_ms)

    def _plan_of(self, job: Job) -> Behaviour:
        rng = random.Random(f"{self.seed}/plan/{job.id}")
        duration_ms, code = rng.randint(5, 3_000), rng.choice((0, 0, 0, 1, 7))
        self.codes[job.id] = code
        return Behaviour(duration_ms, code)

    def _reached(self, point: str, job_id: int) -> None:
        self.trace.append(f"{self.now} {point} {job_id}")
        self.on_point(point, job_id)

    # The shell ------------------------------------------------------------------------------------

    def start_daemon(self) -> None:
        jobs, next_id, next_sequence = self.store.load()
        state = State(jobs, quarantines=self.store.quarantines(), next_id=next_id, next_sequence=next_sequence)
        self.loop = self.loop_class(self.box, self.processes.boot_id, state=state)
        self._inbox = []
        self._frozen = False
        self._life += 1
        self._sweep(self._life)

    def kill_daemon(self, *, back_after_ms: int = 500) -> None:
        self.trace.append(f"{self.now} daemon killed")
        self.loop = None
        life = self._life
        self.after(back_after_ms, lambda: self.start_daemon() if self._life == life and self.loop is None else None)

    def freeze_daemon(self, duration_ms: int) -> None:
        """SIGSTOP, and SIGCONT later: what comes meanwhile is there when it goes on."""
        self._frozen = True
        life = self._life

        def thaw() -> None:
            if self._life == life:
                self._frozen = False
                self._turn()

        self.after(duration_ms, thaw)

    def reboot(self) -> None:
        self._boots += 1
        self.processes.reboot(f"boot-{self._boots}")
        self.kill_daemon(back_after_ms=2_000)

    def _sweep(self, life: int) -> None:
        if self.loop is None or self._life != life:
            return
        if not self._frozen:
            keys = [job.attempt_key for job in self.loop.state.holding.values()]
            self._inbox += [AttemptReported(self.processes.observe(key)) for key in keys]
            self._inbox += [self._reading(), Ticked()]
            self._turn()
        self.after(SWEEP_MS, lambda: self._sweep(life))

    def _reading(self) -> DevicesRead:
        found = []
        for device in self.box.devices:
            tenants = self.processes.memory_of(device.uuid)
            used = device.memory_bytes_reserved + sum(size for _, size in tenants)
            found.append(Reading(device.uuid, self.now, used, 0, 30, 50_000, tenants))
        return DevicesRead(tuple(found))

    def _notice(self, status: AttemptStatus) -> None:
        if self.drop_notices:
            self.drop_notices -= 1
            return
        if self.late_notice_ms:
            delay_ms, self.late_notice_ms = self.late_notice_ms, 0
            self.after(delay_ms, lambda: self._take_notice(status))
            return
        self._take_notice(status)
        if self.double_notices:
            self.double_notices -= 1
            self._take_notice(status)

    def _take_notice(self, status: AttemptStatus) -> None:
        if self.loop is not None:
            self._inbox.append(AttemptReported(status))
            self.after(0, self._turn)

    def _turn(self) -> None:
        """One step of the daemon, if there is one and it is not stopped."""
        if self.loop is None or self._frozen or not self._inbox:
            return
        loop, life = self.loop, self._life
        stimuli, self._inbox = self._inbox, []
        outcome = loop.step(stimuli, self.now)
        try:
            self.store.commit(outcome)
        except PortError:
            loop.rollback()
            return
        loop.commit()
        self._check(loop)
        submitted = {event.job_id for event in outcome.events if event.row is not None}
        for event in outcome.events:
            self.trace.append(f"{self.now} {event.sequence} {event.kind} {event.job_id}")
            if event.job_id is None:
                continue
            if event.kind in ("placed",) or (event.job_id in submitted and event.row is not None):
                self._reached("placed" if event.kind == "placed" else "accepted", event.job_id)
        self._carry_out(outcome, life)

    def _check(self, loop: Loop) -> None:
        self._history.check(self.store.events, self.store.rows)
        checkers.check_indexes(loop.state)
        checkers.check_capacity(loop.state, self.box)
        checkers.check_prompt(loop, self.now)
        checkers.check_starts(self.processes.starts)

    def _carry_out(self, outcome: Outcome, life: int) -> None:
        for command in outcome.commands:
            if self.loop is None or self._life != life:
                return
            if self.crash_after_commands is not None:
                self.crash_after_commands -= 1
                if self.crash_after_commands < 0:
                    self.crash_after_commands = None
                    self.kill_daemon()
                    return
            self._do(command, life)
        for reply in outcome.replies.values():
            self.acknowledged.update(job.id for job in reply.jobs)
        if outcome.wake_ms is not None and self.loop is not None:
            self.after(max(1, outcome.wake_ms - self.now), lambda: self._wake(life))

    def _wake(self, life: int) -> None:
        if self._life == life:
            self._inbox.append(Ticked())
            self._turn()

    def _do(self, command: Command, life: int) -> None:
        match command:
            case StartAttempt(job):
                self.processes.start(job)
            case StopAttempt(key, cause, grace_ms):
                self.processes.stop(key, cause, grace_ms=grace_ms)
            case SignalAttempt(key, number):
                self.processes.signal(key, number, leader_only=False)
            case LimitAttempt(key, time_limit_ms):
                self.processes.set_time_limit(key, time_limit_ms)
            case RevokeAttempt(key):
                self._inbox.append(AttemptReported(self.processes.revoke(key)))
                self.after(0, self._turn)
            case CleanAttempt(key):
                self.processes.clean(key)
            case ReadDevices():
                self.after(RECLAIM_READ_MS, lambda: self._read(life))

    def _read(self, life: int) -> None:
        if self._life == life and self.loop is not None:
            self._inbox.append(self._reading())
            self._turn()

    # Users ----------------------------------------------------------------------------------------

    def ask(self, make: Callable[[int], Stimulus]) -> None:
        """A request; it is lost with the daemon that it was sent to, and then not acknowledged."""
        if self.loop is not None:
            self._token += 1
            self._inbox.append(make(self._token))
            self.after(0, self._turn)

    def submit(self, **fields: Any) -> None:
        request = Request(gpus=fields.pop("gpus", 0), gpu_memory_bytes=fields.pop("gpu_memory_bytes", None))
        spec = JobSpec(
            "job",
            "user",
            0,
            "default",
            WorkloadClass.BATCH,
            (b"true",),
            b"/",
            request,
            "0",
            retry_on=frozenset(RetryCause),
        )
        self.ask(lambda token: SubmitAsked(token, spec, b"", **fields))

    def submit_some(self, count: int) -> None:
        """Jobs of all kinds, drawn from the seed, over the first seconds."""
        rng = self.rng("workload")
        for number in range(count):
            kind = rng.randrange(6)
            fields: dict[str, Any] = {"priority": rng.choice((0, 0, 5)), "retries": rng.choice((0, 1, 2))}
            if kind < 3:
                fields["gpus"] = rng.randint(1, DEVICES)
            elif kind == 3:
                fields["gpu_memory_bytes"] = rng.randint(1, 60) * GIB
            elif kind == 4:
                fields.update(gpus=1, array=tuple(range(rng.randint(2, 5))), array_limit=rng.choice((None, 1, 2)))
            if rng.random() < 0.2 and number:
                fields["dependencies"] = (Dependency(rng.choice(tuple(DependencyKind)), 1),)
                fields["ended"] = {}
            if rng.random() < 0.2:
                fields["begin_ms"] = self.now + rng.randint(0, 4_000)
            self.after(rng.randint(0, 3_000), lambda fields=fields: self._submit_late(fields))  # type: ignore[misc]

    def _submit_late(self, fields: dict[str, Any]) -> None:
        if "ended" in fields:
            first = self.store.rows.get(1)
            fields = {**fields, "ended": {1: first.state} if first is not None else {}}
            if first is None:
                del fields["dependencies"]
        self.submit(**fields)

    def cancel(self, job_id: int) -> None:
        self.ask(lambda token: StopAsked(token, (job_id,), StopCause.CANCEL, "user"))

    def requeue(self, job_id: int) -> None:
        self.ask(lambda token: RequeueAsked(token, (job_id,), "user"))
