"""The driver that every shell runs, the simulator included: stimuli in, one durable step out.

    outcome = loop.step(stimuli, now)      decide; nothing has happened yet
    the shell commits outcome to the store
    loop.commit()                          it happened: carry out outcome.commands, give the replies
    or loop.rollback()                     the store refused: it did not happen; what the world showed comes again

Level-triggered: everything is recomputed from rows and readings, a stimulus only wakes the loop. Synchronous;
must never do I/O, read a clock or draw a number.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from courtier.domain.allocations import Allocation
from courtier.domain.attempts import StopCause
from courtier.domain.devices import Box, Reading
from courtier.domain.health import Quarantine
from courtier.domain.lifecycle import HOLDING, JobState
from courtier.domain.policy import Policy
from courtier.domain.reasons import Reason, reason
from courtier.domain.snapshot import ClassKey, PendingClass, PendingJob, Snapshot
from courtier.domain.workloads import Job
from courtier.engine import health, lifeline, requests
from courtier.engine.commands import Command, ReadDevices
from courtier.engine.events import Event
from courtier.engine.picture import picture, reclaiming_uuids
from courtier.engine.state import State, class_key
from courtier.engine.stimuli import (
    AttemptReported,
    ChangeAsked,
    DevicesRead,
    HoldAsked,
    ReleaseAsked,
    RequeueAsked,
    RestoreAsked,
    SignalAsked,
    Stimulus,
    StopAsked,
    SubmitAsked,
    Ticked,
)
from courtier.engine.turn import Limits, Reply, Turn
from courtier.scheduler.cycle import schedule

# Cycles in one step: each places at least one job or is the last, so this bounds a step's work, not what is placed.
CYCLES_MAX = 256


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step wants kept (events, rows, payloads, counters) and done (commands, replies).

    quarantines are the GPUs that it set aside or took back (None). wake_ms is the instant at which a step is due
    again, None when nothing is timed.
    """

    events: tuple[Event, ...]
    rows: tuple[Job, ...]
    payloads: dict[str, bytes]
    quarantines: dict[str, Quarantine | None]
    next_id: int
    next_sequence: int
    commands: tuple[Command, ...]
    replies: dict[int, Reply]
    wake_ms: int | None


class Loop:
    """The live state of one box and its decisions."""

    def __init__(
        self,
        box: Box,
        boot_id: str,
        *,
        state: State | None = None,
        policy: Policy | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.box = box
        self.boot_id = boot_id
        self.state = state or State()
        self.policy = policy or Policy()
        self.limits = limits or Limits()
        self.readings: dict[str, Reading] = {}
        self.freed_ms: dict[str, int] = {}
        self.refusals: dict[ClassKey, Reason] = {}
        self._recovered = False

    def step(self, stimuli: Iterable[Stimulus], now: int) -> Outcome:
        """Takes in the stimuli, then decides. The first step also repeats what a former daemon left undone."""
        turn = Turn(self.state, self.box, self.boot_id, self.limits, self.readings, now)
        if not self._recovered:
            lifeline.recover(turn)
            health.end_with_boot(turn)
            self._recovered = True
        for stimulus in stimuli:
            self._take_in(turn, stimulus)
        self._stop_overuse(turn)
        self._begin_due(turn)
        self._note_freed(turn)
        deadline_ms = self.limits.reclaim_deadline_ms
        health.quarantine_unreclaimable(turn, self.box, self.readings, self.freed_ms, deadline_ms)
        self._place(turn)
        waiting = reclaiming_uuids(self.state, self.box, self.readings, self.freed_ms)
        if waiting:
            turn.commands.append(ReadDevices(waiting))
        return Outcome(
            events=tuple(turn.events),
            rows=tuple(self.state.changed()),
            payloads=turn.payloads,
            quarantines=self.state.changed_quarantines(),
            next_id=self.state.next_id,
            next_sequence=self.state.next_sequence,
            commands=tuple(turn.commands),
            replies={token: self._fresh(reply) for token, reply in turn.replies.items()},
            wake_ms=self._wake_ms(now),
        )

    def commit(self) -> None:
        self.state.commit()
        self.state.evict_ended()

    def rollback(self) -> None:
        self.state.rollback()
        self.state.evict_ended()
        self.refusals = {}

    def _take_in(self, turn: Turn, stimulus: Stimulus) -> None:
        match stimulus:
            case AttemptReported(status):
                lifeline.attempt_reported(turn, status)
            case DevicesRead(readings):
                self.readings.update((reading.uuid, reading) for reading in readings)
                health.judge_devices(turn, readings)
            case Ticked():
                lifeline.revoke_overdue(turn)
            case RestoreAsked(_, uuids):
                turn.replies[stimulus.token] = requests.restore(turn, uuids)
            case SubmitAsked():
                turn.replies[stimulus.token] = requests.submit(turn, stimulus)
            case StopAsked():
                turn.replies[stimulus.token] = requests.stop(turn, stimulus)
            case SignalAsked():
                turn.replies[stimulus.token] = requests.send_signal(turn, stimulus)
            case HoldAsked():
                turn.replies[stimulus.token] = requests.hold(turn, stimulus)
            case ReleaseAsked():
                turn.replies[stimulus.token] = requests.release(turn, stimulus)
            case RequeueAsked():
                turn.replies[stimulus.token] = requests.requeue(turn, stimulus)
            case ChangeAsked():
                turn.replies[stimulus.token] = requests.change(turn, stimulus)

    def _begin_due(self, turn: Turn) -> None:
        for job_id in [job_id for job_id, begin_ms in self.state.begins.items() if begin_ms <= turn.now]:
            turn.become_eligible(self.state.jobs[job_id])

    def _note_freed(self, turn: Turn) -> None:
        """GPUs whose tenant went in this step must be read once after this instant before they are given on."""
        for job_id, former in self.state.formers():
            if former is None or former.state not in HOLDING or former.allocation is None:
                continue
            after = self.state.jobs[job_id]
            if after.state in HOLDING and after.spawn == former.spawn:
                continue
            # The end is what its supervisor wrote down: a reading taken since then counts, this step's own too.
            freed = turn.now if after.finished_ms is None else min(after.finished_ms, turn.now)
            for share in former.allocation.devices:
                self.freed_ms[share.uuid] = max(freed, self.freed_ms.get(share.uuid, 0))

    def _stop_overuse(self, turn: Turn) -> None:
        """A job that takes more of a shared GPU than it declared endangers its neighbours: it is stopped."""
        for uuid, tenants in self.state.tenancy.items():
            reading = self.readings.get(uuid)
            if reading is None or not tenants:
                continue
            for job_id, used in reading.tenants:
                share = tenants.get(job_id)
                if share is None or share.whole:
                    continue
                job = self.state.jobs[job_id]
                allowed = share.memory_bytes * (100 + self.limits.gpu_overuse_percent) // 100
                if used > allowed and job.stop_cause is None and job.state is JobState.RUNNING:
                    why = reason("gpu_memory_overuse", used_bytes=used, declared_bytes=share.memory_bytes)
                    job = turn.stop(job, StopCause.GPU_MEMORY, by=None, grace_ms=job.spec.grace_ms, why=why)

    def _place(self, turn: Turn) -> None:
        if self.limits.watch_only:
            self.refusals = dict.fromkeys(self.state.queue, reason("watch_only"))
            return
        for _ in range(CYCLES_MAX):
            plan = schedule(self.snapshot(), self.policy, turn.now)
            for action in plan.placements:
                job = self.state.jobs.get(action.job_id)
                if job is not None and job.state is JobState.PENDING and job.spawn == action.spawn:
                    lifeline.place(turn, job, action.allocation)
            self.refusals = dict(plan.refusals)
            if not plan.more or not plan.placements:
                return

    def preview(self, job: Job, now: int) -> Allocation | Reason:
        """Where a job that is not there would go now behind all that wait, or why it would wait."""
        snapshot = self.snapshot()
        mine = PendingJob(job.priority, job.id, job.id, job.spawn, now)
        group = PendingClass(class_key(job), (mine,), 1)
        plan = schedule(replace(snapshot, pending=(*snapshot.pending, group)), self.policy, now)
        for action in plan.placements:
            if action.job_id == job.id:
                return action.allocation
        return plan.refusals.get(group.key) or reason("next")

    def snapshot(self) -> Snapshot:
        """The picture that the next decision reads."""
        return picture(
            self.state,
            self.box,
            self.boot_id,
            self.policy,
            self.readings,
            self.freed_ms,
            ignored_bytes=self.limits.external_ignored_bytes,
        )

    def _fresh(self, reply: Reply) -> Reply:
        """Rows in a reply as they are at the end of the step."""
        if not reply.jobs:
            return reply
        return Reply(tuple(self.state.jobs.get(job.id, job) for job in reply.jobs), reply.refusal, reply.existing)

    def _wake_ms(self, now: int) -> int | None:
        instants = list(self.state.begins.values())
        instants += [
            job.allocation.placed_ms + self.limits.spawn_deadline_ms
            for job in self.state.holding.values()
            if job.state is JobState.STARTING and job.allocation is not None
        ]
        return max(now, min(instants)) if instants else None

    def reason_of(self, job: Job, now: int) -> Reason | None:
        """Why a job waits, or how it ended; None while it runs. For waiting jobs it comes from the last plan."""
        if job.state is JobState.HELD:
            return reason("job_held", job=job.id)
        if job.state is not JobState.PENDING:
            return job.reason
        if job.dependencies:
            return reason("dependency", count=len(job.dependencies), first=job.dependencies[0].job_id)
        if job.eligible_ms is None:
            return job.reason or reason("begin_time", wait_ms=max(0, (job.begin_ms or now) - now))
        return self.refusals.get(class_key(job)) or reason("next")
