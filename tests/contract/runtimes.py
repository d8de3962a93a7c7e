"""Two worlds for the one suite of `Runtime`: real processes in real time, the simulator's in virtual time.

A driver starts programs, lets time pass until something is so, and can hold back claims or a supervisor.
"""

import asyncio
import contextlib
import heapq
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conftest import DEADLINE_SECONDS, alive, wait_until
from courtier.adapters.process.identity import boot_id
from courtier.adapters.process.runtime import ProcessRuntime
from courtier.domain.attempts import AttemptKey, AttemptPhase, AttemptStatus, StopCause
from courtier.domain.lifecycle import JobState
from courtier.domain.workloads import Job, JobSpec, Request, WorkloadClass
from courtier.engine.ports import Launch
from courtier.sim.processes import Behaviour, Processes

ENDED_PHASES = (AttemptPhase.ENDED, AttemptPhase.REFUSED, AttemptPhase.REVOKED, AttemptPhase.VANISHED)
VIRTUAL_MS_MAX = 3_600_000
SLEEPS_MS = 600_000


@dataclass(frozen=True)
class Program:
    """What a job does, told to both worlds: as a shell script (after it said that it runs) and as a behaviour."""

    script: str
    behaviour: Behaviour


def exits(code: int) -> Program:
    return Program(f"exit {code}", Behaviour(5, code))


def dies_of(number: int) -> Program:
    return Program(f"kill -{number} $$", Behaviour(5, signal=number))


_LOOP = "while :; do sleep 0.01; done"
SLEEPS = Program("exec sleep 600", Behaviour(SLEEPS_MS))
IGNORES_TERM = Program(f"trap '' TERM; echo ready; {_LOOP}", Behaviour(SLEEPS_MS, ignores=frozenset({signal.SIGTERM})))
ENDS_BY_ITSELF_ON_TERM = Program(f"trap 'exit 3' TERM; echo ready; {_LOOP}", Behaviour(SLEEPS_MS, term_code=3))
LEAVES_A_CHILD = Program("setsid sleep 600 & echo ready; exec sleep 600", Behaviour(SLEEPS_MS))
LEAVES_A_STUBBORN_CHILD = Program(f"trap '' TERM; ({_LOOP}) & exit 7", Behaviour(5, 7))
TAKES_400_MS = Program("sleep 0.4; exit 4", Behaviour(400, 4))


class RealDriver:
    """ProcessRuntime in an event loop that turns while the test waits."""

    name = "processes"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "home").mkdir()
        self.boot_id = boot_id()
        self.reports: list[AttemptStatus] = []
        self._loop = asyncio.new_event_loop()
        self.runtime = ProcessRuntime(folder / "home", self.boot_id, self.reports.append)
        self._keys: list[AttemptKey] = []
        self._in_loop(self.runtime.open)
        server = self.runtime._server
        assert server is not None
        self.server_pid = server.pid

    def _in_loop(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        async def inside() -> Any:
            return call(*arguments, **named)

        return self._loop.run_until_complete(inside())

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        async def turn() -> Any:
            deadline = time.monotonic() + DEADLINE_SECONDS
            while time.monotonic() < deadline:
                if answer := condition():
                    return answer
                await asyncio.sleep(0.002)
            raise AssertionError(f"{what} did not come true in {DEADLINE_SECONDS} s")

        return self._loop.run_until_complete(turn())

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def launch(self, key: AttemptKey, program: Program, **fields: Any) -> Launch:
        own = self.folder / str(key)
        own.mkdir(exist_ok=True)
        bad = fields.pop("bad_log", False)
        log = os.fsencode(own / "log") if not bad else b"/dev/null/log"
        script = f"echo x >> {own}/starts; {program.script}"
        wanted: dict[str, Any] = {
            "key": key,
            "argv": (b"/bin/sh", b"-c", script.encode()),
            "environment": ((b"PATH", os.fsencode(os.environ["PATH"])),),
            "directory": b"/",
            "stdout_path": log,
            "stderr_path": log,
            "append_logs": False,
            "log_bytes_max": 1 << 20,
            "time_limit_ms": None,
            "grace_ms": SLEEPS_MS,
            "warn_signal": None,
            "warn_before_ms": 0,
            "warn_leader_only": False,
            "cpus_milli": None,
            "memory_bytes": None,
            "interactive": False,
            "terminal": False,
            "umask": 0o022,
        }
        return Launch(**(wanted | fields))

    def start(self, key: AttemptKey, program: Program, **fields: Any) -> None:
        self._keys.append(key)
        self._in_loop(self.runtime.start, self.launch(key, program, **fields))

    def started(self, key: AttemptKey, program: Program, **fields: Any) -> AttemptStatus:
        """Starts it and waits until the program itself has its traps set."""
        self.start(key, program, **fields)
        if "echo ready" in program.script:
            self.until(lambda: b"ready" in self.log_of(key), "the program's own word")
        return self.until_phase(key, AttemptPhase.RUNNING)

    def log_of(self, key: AttemptKey) -> bytes:
        try:
            return (self.folder / str(key) / "log").read_bytes()
        except FileNotFoundError:
            return b""

    def until_phase(self, key: AttemptKey, phase: AttemptPhase) -> AttemptStatus:
        def there() -> AttemptStatus | None:
            status = self._observe(key)
            assert status.phase is phase or status.phase not in ENDED_PHASES, status
            return status if status.phase is phase else None

        return self.until(there, f"{key} {phase}")  # type: ignore[no-any-return]

    def _observe(self, key: AttemptKey) -> AttemptStatus:
        (status,) = self.runtime.observe([key])
        return status

    def observe(self, key: AttemptKey) -> AttemptStatus:
        return self._in_loop(self._observe, key)  # type: ignore[no-any-return]

    def stop(self, key: AttemptKey, cause: StopCause, *, grace_ms: int) -> None:
        self._in_loop(self.runtime.stop, key, cause, grace_ms=grace_ms)

    def signal(self, key: AttemptKey, number: int, *, leader_only: bool = False) -> bool:
        return self._in_loop(self.runtime.signal, key, number, leader_only=leader_only)  # type: ignore[no-any-return]

    def set_time_limit(self, key: AttemptKey, time_limit_ms: int | None) -> None:
        self._in_loop(self.runtime.set_time_limit, key, time_limit_ms)

    def revoke(self, key: AttemptKey) -> AttemptStatus:
        return self._in_loop(self.runtime.revoke, key)  # type: ignore[no-any-return]

    def clean(self, key: AttemptKey) -> None:
        self._in_loop(self.runtime.clean, key)

    def starts_of(self, key: AttemptKey) -> int:
        path = self.folder / str(key) / "starts"
        return path.read_text().count("x") if path.exists() else 0

    def living(self, key: AttemptKey) -> int:
        return len(self.runtime.processes_of(key))

    @contextlib.contextmanager
    def claims_held(self) -> Iterator[None]:
        """Nobody takes a start up in here."""
        os.kill(self.server_pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.server_pid, signal.SIGCONT)

    @contextlib.contextmanager
    def supervisor_held(self, key: AttemptKey) -> Iterator[None]:
        """The supervisor does nothing in here."""
        supervisor = self.observe(key).supervisor
        assert supervisor is not None
        os.kill(supervisor.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(supervisor.pid, signal.SIGCONT)

    def kill_supervisor(self, key: AttemptKey) -> None:
        supervisor = self.observe(key).supervisor
        assert supervisor is not None
        os.kill(supervisor.pid, signal.SIGKILL)

    def settle(self, fence: AttemptKey) -> None:
        """Every start asked for so far was taken up or given up: the fork server has served a later one, and has no
        child that lives on."""
        self.start(fence, exits(0))
        self.until_phase(fence, AttemptPhase.ENDED)
        children = Path(f"/proc/{self.server_pid}/task/{self.server_pid}/children")
        self.until(lambda: not children.read_text().split(), "a fork server without children")

    def close(self) -> None:
        for key in self._keys:
            self.stop(key, StopCause.CANCEL, grace_ms=0)
        self._in_loop(self.runtime.close)
        self._loop.close()
        wait_until(lambda: not alive(self.server_pid), "the end of the fork server with its last supervisor")
        # The runtime reaps it where it ended at once.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.server_pid, 0)


class SimulatedDriver:
    """sim.processes on a heap of its own; a claim waits until time is let pass."""

    name = "simulator"

    def __init__(self, seed: int = 0) -> None:
        import random

        self._random = random.Random(seed)
        self.boot_id = "boot-0"
        self.now = 1_000_000
        self.reports: list[AttemptStatus] = []
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._programs: dict[int, Program] = {}
        self.processes = Processes(
            after=self._after,
            notice=self.reports.append,
            reached=lambda _point, _job: None,
            now=lambda: self.now,
            delay=lambda: self._random.randint(1, 40),
            plan=lambda job: self._programs[job.id].behaviour,
            boot_id=self.boot_id,
        )

    def _after(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + delay_ms, self._sequence, action))

    def _pass(self, until_ms: int) -> bool:
        if not self._heap or self._heap[0][0] > until_ms:
            return False
        at, _, action = heapq.heappop(self._heap)
        self.now = max(self.now, at)
        action()
        return True

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        end = self.now + VIRTUAL_MS_MAX
        while not (answer := condition()):
            assert self._pass(end), f"{what} never came true"
        return answer

    def now_ms(self) -> int:
        return self.now

    def start(self, key: AttemptKey, program: Program, **fields: Any) -> None:
        self._programs[key.job_id] = program
        if fields.get("bad_log"):
            self.processes.refuse_next = True
        request = Request(time_limit_ms=fields.get("time_limit_ms"))
        spec = JobSpec(
            name="job",
            user="user",
            uid=0,
            queue="default",
            workload_class=WorkloadClass.BATCH,
            command=(b"true",),
            directory=b"/",
            request=request,
            payload_sha256="0",
            grace_ms=fields.get("grace_ms", SLEEPS_MS),
        )
        job = Job(key.job_id, spec, JobState.STARTING, 0, 0, attempt=key.attempt, spawn=int(key.nonce))
        assert job.attempt_key == key
        self.processes.start(job)

    def started(self, key: AttemptKey, program: Program, **fields: Any) -> AttemptStatus:
        self.start(key, program, **fields)
        return self.until_phase(key, AttemptPhase.RUNNING)

    def until_phase(self, key: AttemptKey, phase: AttemptPhase) -> AttemptStatus:
        self.until(lambda: self.observe(key).phase in (phase, *ENDED_PHASES), f"{key} {phase}")
        status = self.observe(key)
        assert status.phase is phase, status
        return status

    def observe(self, key: AttemptKey) -> AttemptStatus:
        return self.processes.observe(key)

    def stop(self, key: AttemptKey, cause: StopCause, *, grace_ms: int) -> None:
        self.processes.stop(key, cause, grace_ms=grace_ms)

    def signal(self, key: AttemptKey, number: int, *, leader_only: bool = False) -> bool:
        return self.processes.signal(key, number, leader_only=leader_only)

    def set_time_limit(self, key: AttemptKey, time_limit_ms: int | None) -> None:
        self.processes.set_time_limit(key, time_limit_ms)

    def revoke(self, key: AttemptKey) -> AttemptStatus:
        return self.processes.revoke(key)

    def clean(self, key: AttemptKey) -> None:
        self.processes.clean(key)

    def starts_of(self, key: AttemptKey) -> int:
        return self.processes.starts.get((key.job_id, key.attempt), 0)

    def living(self, key: AttemptKey) -> int:
        return int(self.observe(key).phase in (AttemptPhase.RUNNING, AttemptPhase.COMPLETING))

    @contextlib.contextmanager
    def claims_held(self) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def supervisor_held(self, key: AttemptKey) -> Iterator[None]:
        yield

    def kill_supervisor(self, key: AttemptKey) -> None:
        self.processes.kill_supervisor(key.job_id)

    def settle(self, fence: AttemptKey) -> None:
        while self._pass(self.now + VIRTUAL_MS_MAX):
            pass

    def close(self) -> None:
        return


Driver = RealDriver | SimulatedDriver
DRIVERS: dict[str, Callable[[Path], Driver]] = {
    "processes": RealDriver,
    "simulator": lambda _folder: SimulatedDriver(),
}
