"""Owns one attempt of one job from claim to empty tree, and outlives the daemon.

Claims, records the start before the command runs, passes its output on, holds its limits, ends its whole
tree and records the end. Never runs a command whose claim it does not hold; never ends before its tree.
"""

import contextlib
import json
import os
import selectors
import signal
import time
from dataclasses import dataclass
from typing import Any

from courtier.adapters.process import record
from courtier.adapters.process.cgroup import JobCgroups
from courtier.adapters.process.enclosure import Enclosure
from courtier.adapters.process.fence import FenceError
from courtier.adapters.process.frames import connect_in
from courtier.adapters.process.identity import identify
from courtier.adapters.process.leader import PR_SET_CHILD_SUBREAPER, Child, Command, prctl
from courtier.adapters.process.output import Output
from courtier.adapters.process.tree import descendants, resident_bytes, signal_all
from courtier.domain.attempts import ProcessIdentity, StopCause
from courtier.engine.ports import Launch

NOTIFY_NAME = "notify.sock"
CONTROL_NAME = "control"
RSS_WATCH_SECONDS = 0.25
KILL_AGAIN_SECONDS = 0.05
# The control file is read on a poke; this often without one, should the poke be lost.
CONTROL_SECONDS = 1.0
# How often a fence is looked into for what its job left behind.
FENCE_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Place:
    """Where and as whom a supervisor works. mark is the value of COURTIER_MARK in its job's environment."""

    home: str
    boot_id: str
    cgroup: str
    mark: str


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def notify(home: str, text: str) -> None:
    """Tells the daemon that there is something to see; best effort, the record is the truth."""
    import socket

    try:
        with connect_in(f"{home}/run", NOTIFY_NAME, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)
            channel.send(text.encode()[:8000])
    except OSError:
        return


class Supervisor:
    """One attempt. `run` returns when it is over."""

    def __init__(self, launch: Launch, place: Place) -> None:
        self._launch = launch
        self._place = place
        self._key = str(launch.key)
        self._directory = f"{place.home}/run/{self._key}"
        self._selector = selectors.DefaultSelector()
        self._record = -1
        self._child: Child | None = None
        self._leader_status: int | None = None
        self._exit_page: dict[str, Any] | None = None
        self._exec_error: dict[str, Any] = {}
        self._stop_cause: StopCause | None = None
        self._kill_at: float | None = None
        self._limit_at: float | None = None
        self._warn_at: float | None = None
        self._limit_ms = launch.time_limit_ms
        self._attach_by: float | None = None
        self._started: float | None = None
        self._watch_at: float | None = None
        self._control_at = 0.0
        self._empty = False
        self._cpu_seconds = 0.0
        self._peak_bytes = 0
        self._control_seen = b""
        self._enclosure = Enclosure(launch)
        self._refusal: str | None = None

    def run(self) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        me = identify(os.getpid(), self._place.boot_id)
        assert me is not None
        try:
            # First of all: bubblewrap works while the claim goes to the disk. A terminal has to be there before it.
            if not self._launch.terminal:
                self._enclosure.begin()
            self._claim_and_run(me)
        except FenceError as error:
            notify(self._place.home, f"{self._key} refused {error}")
        finally:
            self._enclosure.discard()

    def _claim_and_run(self, me: ProcessIdentity) -> None:
        claim = {"pid": me.pid, "start_ticks": me.start_ticks, "boot_id": me.boot_id, "at_ms": _now_ms()}
        try:
            self._record = record.claim(self._directory, claim)
        except (FileExistsError, FileNotFoundError):
            return
        except OSError as error:
            notify(self._place.home, f"{self._key} refused {error.strerror}")
            return
        self._signals()
        launch = self._launch
        self._cgroups = JobCgroups(self._place.cgroup, memory_bytes=launch.memory_bytes, cpus_milli=launch.cpus_milli)
        try:
            self._output = Output(self._selector, launch, self._directory, self._frame, self._owner_gone)
        except OSError as error:
            self._refuse(f"{error.filename or 'log'}: {error.strerror}")
            return
        self._read_control()
        self._say("claimed")
        if launch.interactive and self._stop_cause is None:
            self._attach_by = time.monotonic() + launch.attach_ms / 1000
        elif self._stop_cause is None:
            self._start()
        self._loop()
        self._finish()

    def _say(self, phase: str) -> None:
        notify(self._place.home, f"{self._key} {phase}")

    def _signals(self) -> None:
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        self._wake = read
        self._selector.register(read, selectors.EVENT_READ, self._woken)

    def _woken(self, _mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            if signal.SIGUSR1 in os.read(self._wake, 4096):
                self._control_at = 0.0

    def _refuse(self, error: str) -> None:
        record.write_pages(self._record, record.END, {"refused": error[:2000], "finished_ms": _now_ms()})
        self._cgroups.remove()
        notify(self._place.home, f"{self._key} refused {error}")

    # Start ----------------------------------------------------------------------------------------

    def _start(self) -> None:
        launch = self._launch
        environment = dict(launch.environment)
        environment[b"COURTIER_MARK"] = self._place.mark.encode()
        command = Command(launch.argv, environment, launch.directory, launch.umask, launch.terminal, launch.owner)
        try:
            self._child = self._fork(command)
        except FenceError as error:
            self._refusal = str(error)
            return
        self._output.close_child_ends()
        leader = identify(self._child.pid, self._place.boot_id)
        started_ms = _now_ms()
        start = {
            "pid": self._child.pid,
            "start_ticks": leader.start_ticks if leader is not None else 0,
            "started_ms": started_ms,
            "enforcement": self._cgroups.enforcement,
        }
        record.write_pages(self._record, record.START, start)
        self._started = time.monotonic()
        self._set_limit(self._limit_ms)
        if launch.memory_bytes is not None and self._cgroups.memory_level == "rss-watch":
            self._watch_at = self._started
        with contextlib.suppress(OSError):
            os.write(self._child.go, b"!")
        os.close(self._child.go)
        self._say("running")

    def _fork(self, command: Command) -> Child:
        """The waiting child, inside its fence where it has one. Raises FenceError: then nothing of the job ran."""
        stdin, stdout, stderr = self._output.child_ends()
        self._enclosure.begin(self._output.terminal_path)
        return self._enclosure.fork(command, (stdin, stdout, stderr), self._cgroups.join)

    def _set_limit(self, time_limit_ms: int | None) -> None:
        self._limit_ms = time_limit_ms
        if self._started is None:
            return
        self._limit_at = self._warn_at = None
        if time_limit_ms is None:
            return
        self._limit_at = self._started + time_limit_ms / 1000
        if self._launch.warn_signal is not None:
            warn_at = self._limit_at - self._launch.warn_before_ms / 1000
            self._warn_at = max(warn_at, time.monotonic())

    # The loop -------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not (self._empty and self._attach_by is None):
            for key, mask in self._selector.select(self._pause()):
                key.data(mask)
            self._reap()
            self._timers(time.monotonic())
            self._output.balance()

    def _pause(self) -> float:
        timed = (self._kill_at, self._limit_at, self._warn_at, self._attach_by, self._watch_at)
        due = [self._control_at + CONTROL_SECONDS, *(at for at in timed if at is not None)]
        if self._child is None and self._attach_by is None:
            return 0.0
        if self._enclosure.stands and self._leader_status is not None:
            # What a job leaves behind in a fence is not this process's child: nobody tells of its end.
            due.append(time.monotonic() + FENCE_LOOK_SECONDS)
        return max(0.0, min(due) - time.monotonic())

    def _reap(self) -> None:
        if self._child is None:
            self._empty = self._attach_by is None
            return
        while True:
            try:
                # A fence that was ended has only its own few processes left: worth the moment.
                pid, status, usage = os.wait4(-1, 0 if self._enclosure.ended else os.WNOHANG)
            except ChildProcessError:
                self._empty = True
                break
            if pid == 0:
                break
            self._cpu_seconds += usage.ru_utime + usage.ru_stime
            self._peak_bytes = max(self._peak_bytes, usage.ru_maxrss * 1024)
            if pid == self._child.pid:
                self._leader_status = status
                self._enclosure.end_if_empty()
        if self._leader_status is not None and self._exit_page is None:
            self._leader_exited()

    def _leader_exited(self) -> None:
        assert self._leader_status is not None and self._child is not None
        failure = os.read(self._child.failure, 4096)
        os.close(self._child.failure)
        if failure:
            self._exec_error = json.loads(failure)
        code = os.waitstatus_to_exitcode(self._leader_status)
        self._exit_page = {
            "exit_code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "stop_cause": self._stop_cause,
            "error": self._exec_error.get("error"),
            "at_ms": _now_ms(),
        }
        if self._empty:
            return
        record.write_pages(self._record, record.EXIT, self._exit_page)
        self._say("completing")
        if self._kill_at is None:
            self._end_tree(self._launch.grace_ms)

    def _timers(self, now: float) -> None:
        if self._leader_status is not None:
            self._enclosure.end_if_empty()
        if now >= self._control_at + CONTROL_SECONDS:
            self._control_at = now
            self._read_control()
        if self._attach_by is not None and (now >= self._attach_by or self._stop_cause is not None):
            self._attach_by = None
            self._stop_cause = self._stop_cause or StopCause.CLIENT_GONE
        if self._warn_at is not None and now >= self._warn_at:
            self._warn_at = None
            self._signal_job(self._launch.warn_signal or signal.SIGUSR1, leader_only=self._launch.warn_leader_only)
        if self._limit_at is not None and now >= self._limit_at:
            self._limit_at = None
            if self._leader_status is None:
                self._stop(StopCause.TIME_LIMIT, self._launch.grace_ms)
        if self._watch_at is not None and now >= self._watch_at:
            self._watch_at = now + RSS_WATCH_SECONDS
            self._watch_memory()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = now + KILL_AGAIN_SECONDS
            self._enclosure.end()
            if not self._cgroups.kill():
                signal_all(self._tree(), signal.SIGKILL, self._place.boot_id)

    def _tree(self) -> list[Any]:
        fence = self._enclosure.pids
        return [found for found in descendants(os.getpid(), self._place.boot_id) if found.pid not in fence]

    def _watch_memory(self) -> None:
        used = resident_bytes(self._tree())
        self._peak_bytes = max(self._peak_bytes, used)
        if used > (self._launch.memory_bytes or 0) and self._leader_status is None:
            self._watch_at = None
            self._stop(StopCause.MEMORY_WATCH, 0)

    # Stopping -------------------------------------------------------------------------------------

    def _stop(self, cause: StopCause, grace_ms: int) -> None:
        if self._leader_status is None and self._stop_cause is None:
            self._stop_cause = cause
        if self._child is not None:
            self._end_tree(grace_ms)

    def _end_tree(self, grace_ms: int) -> None:
        """TERM now, KILL after the grace; a second call only shortens it."""
        kill_at = time.monotonic() + grace_ms / 1000
        if self._kill_at is None and grace_ms > 0:
            signal_all(self._tree(), signal.SIGTERM, self._place.boot_id)
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)

    def _signal_job(self, number: int, *, leader_only: bool) -> None:
        tree = self._tree()
        if leader_only and self._child is not None:
            tree = [identity for identity in tree if identity.pid == self._child.pid]
        signal_all(tree, number, self._place.boot_id)

    def _read_control(self) -> None:
        try:
            with open(f"{self._directory}/{CONTROL_NAME}", "rb") as file:
                content = file.read()
        except OSError:
            return
        if content == self._control_seen:
            return
        self._control_seen = content
        control = json.loads(content)
        # The file holds every wish so far: an old limit set anew would warn the job a second time.
        if control.get("time_limit_ms", self._limit_ms) != self._limit_ms:
            self._set_limit(control["time_limit_ms"])
        stop = control.get("stop")
        if stop is not None:
            self._stop(StopCause(stop["cause"]), stop["grace_ms"])

    # Attached clients -----------------------------------------------------------------------------

    def _frame(self, client: Any, kind: bytes, content: bytes) -> None:
        if kind == b"a" and client.owner and self._attach_by is not None:
            self._attach_by = None
            self._output.resize(json.loads(content))
            if self._stop_cause is None:
                self._start()
        elif kind == b"w" and client.owner:
            self._output.resize(json.loads(content))
        elif kind == b"s" and client.owner:
            self._signal_job(int(json.loads(content)["signal"]), leader_only=False)

    def _owner_gone(self) -> None:
        if self._launch.interactive and self._leader_status is None:
            self._stop(StopCause.CLIENT_GONE, self._launch.grace_ms)

    # End ------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        if self._refusal is not None:
            self._refuse(self._refusal)
            return
        truncated = self._output.drain()
        page = self._exit_page
        end = {
            "finished_ms": _now_ms(),
            "stop_cause": self._stop_cause,
            "oom_kills": self._cgroups.oom_kills(),
            "memory_bytes_peak": self._cgroups.memory_bytes_peak() or self._peak_bytes or None,
            "cpu_ms": int(self._cpu_seconds * 1000) if page is not None else None,
            "log_truncated": truncated,
        }
        if page is not None:
            record.write_pages(self._record, record.EXIT, page, end)
        else:
            record.write_pages(self._record, record.END, end)
        self._output.close(json.dumps({**end, **(page or {"exit_code": None, "signal": None})}).encode())
        self._cgroups.remove()
        self._say("ended")
