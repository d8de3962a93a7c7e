"""The one-box shell: gathers stimuli, drives the engine's loop, keeps each step, then carries it out.

The order is the law: step, commit to the store, then commands and answers. What the store refuses did not
happen. Decides nothing itself: every decision is the loop's. One task runs `turn`; nothing else touches the loop.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from courtier.adapters.process.runtime import ProcessRuntime
from courtier.adapters.simtelemetry import SimulatedTelemetry
from courtier.adapters.sqlite import SqliteStore
from courtier.daemon.execute import Executor
from courtier.daemon.looks import Looks
from courtier.daemon.settings import Settings
from courtier.domain.attempts import AttemptPhase, AttemptStatus
from courtier.domain.devices import Box, Reading
from courtier.domain.lifecycle import ENDED
from courtier.domain.policy import Policy
from courtier.domain.workloads import Job
from courtier.engine.loop import Loop, Outcome
from courtier.engine.ports import PortError, Telemetry
from courtier.engine.state import State
from courtier.engine.stimuli import AttemptReported, DevicesRead, Request, Stimulus, Ticked
from courtier.engine.turn import Limits, Reply

log = logging.getLogger("courtier.broker")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class StepFailed(Exception):
    """The step that held a request was not kept; the request did not happen."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Broker:
    """One box. `ask` puts a request into the next step and waits until that step is on disk."""

    def __init__(
        self,
        home: Path,
        box: Box,
        boot_id: str,
        settings: Settings,
        store: SqliteStore,
    ) -> None:
        self.home = home
        self.box = box
        self.settings = settings
        self.store = store
        self.boot_id = boot_id
        jobs, next_id, next_sequence = store.load()
        self.loop = Loop(
            box,
            boot_id,
            state=State(jobs, quarantines=store.quarantines(), next_id=next_id, next_sequence=next_sequence),
            policy=Policy(barrier_after_ms=settings.barrier_after_ms, user_gpus_max=settings.user_gpus_max),
            limits=Limits(
                spawn_deadline_ms=settings.spawn_deadline_ms,
                start_backoff_ms=settings.start_backoff_ms,
                starts_refused_max=settings.starts_refused_max,
                array_size_max=settings.array_size_max,
                jobs_active_max=settings.jobs_active_max,
                gpu_overuse_percent=settings.gpu_overuse_percent,
                user_jobs_active_max=settings.user_jobs_active_max,
                user_gpus_max=settings.user_gpus_max,
                reclaim_deadline_ms=settings.reclaim_deadline_ms,
                watch_only=bool(settings.watch_only),
                external_ignored_bytes=settings.external_ignored_bytes,
            ),
        )
        self.runtime = ProcessRuntime(home, boot_id, self._report)
        self.telemetry = self._make_telemetry()
        self.looks = Looks(
            box, self.loop.state, self.telemetry, settings.external_ignored_bytes, settings.gpu_answer_ms
        )
        self.executor = Executor(self)
        self.attachable: set[str] = set()
        self._inbox: list[Stimulus] = []
        self._before: list[tuple[int, Callable[[], Request]]] = []
        self._answers: dict[int, asyncio.Future[Reply]] = {}
        self._next_token = 1
        self._woken = asyncio.Event()
        self._watchers: set[asyncio.Future[None]] = set()
        self._stopping = False
        self._sweep_due_ms = 0
        self._telemetry_due_ms = 0
        self._reclaim_read_ms = 0
        self._wake_ms: int | None = None
        self._task: asyncio.Task[None] | None = None

    def _make_telemetry(self) -> Telemetry:
        if self.box.simulated is not None or not self.box.devices:
            return SimulatedTelemetry(self.box.devices, self._take_readings)
        # Imported here: a simulated box needs none of it.
        from courtier.adapters.nvml.telemetry import NvmlTelemetry

        return NvmlTelemetry(
            self.box.devices,
            self._take_readings,
            self.runtime.attribution.job_of,
            deadline_ms=self.settings.gpu_answer_ms,
        )

    # Life -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Adopts what runs, then begins to decide."""
        self.runtime.open()
        self.telemetry.open()
        self._look_at_attempts()
        # What a former daemon recorded and did not get to clean: an ended attempt that no row holds goes.
        self._inbox += [AttemptReported(status) for status in self.runtime.observe(self.runtime.attempts_on_disk())]
        self._read_devices(device.uuid for device in self.box.devices)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stops deciding; supervisors and their jobs go on."""
        self._stopping = True
        self._woken.set()
        if self._task is not None:
            await self._task
        self.telemetry.close()
        self.runtime.close()
        self.store.close()

    async def _run(self) -> None:
        while not self._stopping:
            due = [self._sweep_due_ms, self._telemetry_due_ms]
            if self._wake_ms is not None:
                due.append(self._wake_ms)
            if self._reclaim_read_ms:
                due.append(self._reclaim_read_ms)
            pause_ms = max(0, min(due) - now_ms())
            if not self._inbox and not self._before and pause_ms:
                try:
                    await asyncio.wait_for(self._woken.wait(), pause_ms / 1000)
                except TimeoutError:
                    pass
            self._woken.clear()
            self._gather_due()
            if self._inbox or self._before:
                self._turn()
            # Answers and other tasks get their chance between two steps.
            await asyncio.sleep(0)

    def _gather_due(self) -> None:
        now = now_ms()
        if now >= self._sweep_due_ms:
            self._sweep_due_ms = now + self.settings.sweep_ms
            self._look_at_attempts()
            self._inbox.append(Ticked())
        if now >= self._telemetry_due_ms:
            self._telemetry_due_ms = now + self.settings.telemetry_ms
            self._read_devices(device.uuid for device in self.box.devices)
        elif self._reclaim_read_ms and now >= self._reclaim_read_ms:
            self._reclaim_read_ms = 0
            self._read_devices(device.uuid for device in self.box.devices)
        if self._wake_ms is not None and now >= self._wake_ms:
            self._wake_ms = None
            self._inbox.append(Ticked())

    # Stimuli --------------------------------------------------------------------------------------

    def _report(self, status: AttemptStatus) -> None:
        self._note(status)
        self._inbox.append(AttemptReported(status))
        if status.phase in (AttemptPhase.ENDED, AttemptPhase.VANISHED):
            job = self.loop.state.jobs.get(status.key.job_id)
            if job is not None and job.allocation is not None:
                self._read_devices(share.uuid for share in job.allocation.devices)
        self._woken.set()

    def _note(self, status: AttemptStatus) -> None:
        """What the simulated GPUs and waiting terminals need to know at once, whatever the step says of it."""
        name = str(status.key)
        if status.phase in (AttemptPhase.RUNNING, AttemptPhase.COMPLETING):
            self.executor.simulate_use(status.key)
            self.attachable.add(name)
        elif status.phase is AttemptPhase.CLAIMED:
            self.attachable.add(name)
        elif status.phase is not AttemptPhase.ABSENT:
            self.executor.end_use(status.key)
            self.attachable.discard(name)
        self.tell_watchers()

    def _look_at_attempts(self) -> None:
        """Level-triggered: what every holding job's attempt looks like now, whether or not a notice came."""
        keys = [job.attempt_key for job in self.loop.state.holding.values()]
        for status in self.runtime.observe(keys):
            self._note(status)
            self._inbox.append(AttemptReported(status))

    def _read_devices(self, uuids: Iterable[str]) -> None:
        self.telemetry.request(uuids)

    def _take_readings(self, readings: Sequence[Reading]) -> None:
        self._inbox.append(DevicesRead(tuple(readings)))
        self.looks.take(readings)
        self._woken.set()

    async def ask(self, make: Callable[[int], Request]) -> Reply:
        """Puts a request into the next step. Raises StepFailed when that step could not be kept.

        `make` is called right before the step with the request's token, so that what it looks up is still so.
        """
        token = self._next_token
        self._next_token += 1
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._answers[token] = answer
        self._before.append((token, lambda: make(token)))
        self._woken.set()
        return await answer

    # The step -------------------------------------------------------------------------------------

    def _turn(self) -> None:
        stimuli, self._inbox = self._inbox, []
        requests, self._before = self._before, []
        for token, make in requests:
            try:
                stimuli.append(make())
            except Exception as error:
                self._answer(token, error)
        try:
            outcome = self.loop.step(stimuli, now_ms())
            if outcome.events or outcome.payloads:
                self.store.commit(outcome)
        except Exception as error:
            self._undo(error, [token for token, _ in requests])
            # A driver tells an error once: those readings are taken in again with the next step.
            self._inbox += [s for s in stimuli if isinstance(s, DevicesRead) and any(r.xids for r in s.readings)]
            return
        self.loop.commit()
        self._wake_ms = outcome.wake_ms
        self._carry_out(outcome)
        for token, reply in outcome.replies.items():
            self._answer(token, reply)
        if outcome.rows:
            self.tell_watchers()

    def _carry_out(self, outcome: Outcome) -> None:
        for command in outcome.commands:
            try:
                self.executor.carry_out(command)
            except PortError as error:
                log.error("%s: %s", type(command).__name__, error.text)

    def _undo(self, error: Exception, tokens: list[int]) -> None:
        """Nothing of the step happened. What the world shows is looked at again by the next sweep."""
        self.loop.rollback()
        if isinstance(error, PortError):
            log.error("step not kept: %s", error.text)
            failed = StepFailed(error.code, error.text)
        else:
            log.exception("step failed", exc_info=error)
            failed = StepFailed("internal", f"{type(error).__name__}: {error}")
        self._sweep_due_ms = now_ms() + self.settings.store_retry_ms
        self._wake_ms = None
        for token in tokens:
            self._answer(token, failed)

    def _answer(self, token: int, answer: Reply | Exception) -> None:
        future = self._answers.pop(token, None)
        if future is None or future.done():
            return
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def read_reclaiming(self) -> None:
        """A GPU waits for its memory: read now, or as soon as the pace of reclaim reads allows."""
        if not self._reclaim_read_ms:
            self._reclaim_read_ms = now_ms() + self.settings.reclaim_read_ms

    def add_stimulus(self, stimulus: Stimulus) -> None:
        self._inbox.append(stimulus)
        self._woken.set()

    # Looking --------------------------------------------------------------------------------------

    def tell_watchers(self) -> None:
        watchers, self._watchers = self._watchers, set()
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    async def wait_change(self, timeout_ms: int) -> None:
        """Returns at the next change of anything, or after the timeout."""
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.add(watcher)
        try:
            await asyncio.wait_for(watcher, timeout_ms / 1000)
        except TimeoutError:
            pass
        finally:
            self._watchers.discard(watcher)

    def find(self, job_id: int) -> Job | None:
        """A live or an ended job."""
        return self.loop.state.jobs.get(job_id) or self.store.job(job_id)

    def members(self, number: int) -> list[Job]:
        """The job of this number, or all jobs of the array of this number; live rows where there are."""
        job = self.find(number)
        if job is not None:
            return [job]
        live = self.loop.state.jobs
        return [live.get(member.id, member) for member in self.store.array_jobs(number)]

    def load_for_step(self, number: int) -> tuple[int, ...]:
        """Ids that a request on `number` means, ended ones brought into the state for this one step."""
        jobs = self.members(number)
        for job in jobs:
            if job.state in ENDED:
                self.loop.state.load(job)
        return tuple(job.id for job in jobs)
