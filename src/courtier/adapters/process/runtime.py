"""The daemon's side of its jobs' processes: asks for supervisors, watches them, tells them what to do.

Implements engine.ports.Runtime. The record on disk is the truth; a notice or a dead pidfd only says that it
is worth a look. Runs in the daemon's event loop; no call may wait for another process.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from courtier.adapters.process.attribution import Attribution
from courtier.adapters.process.forkserver import LENGTH, empty_attempt, mark_of
from courtier.adapters.process.frames import socket_address
from courtier.adapters.process.identity import is_alive, open_pidfd, signal_process
from courtier.adapters.process.record import Record, read_record
from courtier.adapters.process.supervisor import CONTROL_NAME, NOTIFY_NAME
from courtier.adapters.process.tree import descendants, marked, signal_all
from courtier.domain.attempts import AttemptKey, AttemptPhase, AttemptStatus, ProcessIdentity, StopCause
from courtier.engine.ports import Launch, PortError

REVOKED_NAME = ".revoked"


def home_tag(home: Path) -> str:
    """A short name of one home, for cgroups and marks."""
    return hashlib.sha256(os.fsencode(home)).hexdigest()[:12]


class ProcessRuntime:
    """`report` is called with every status that changed, from the event loop."""

    def __init__(self, home: Path, boot_id: str, report: Callable[[AttemptStatus], None]) -> None:
        self._home = home
        self._run = home / "run"
        self._boot_id = boot_id
        self._tag = home_tag(home)
        self._report = report
        self._encoder = msgspec.msgpack.Encoder()
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._outgoing = bytearray()
        self._notices: socket.socket | None = None
        self._watched: dict[AttemptKey, int] = {}
        self._supervisor_pids: dict[int, AttemptKey] = {}
        self.attribution = Attribution(self._tag, lambda: self._supervisor_pids)
        self._limits: dict[AttemptKey, dict[str, Any]] = {}

    # Life -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begins to listen and starts the fork server. Needs a running event loop."""
        (self._run / REVOKED_NAME).mkdir(mode=0o700, parents=True, exist_ok=True)
        notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._run / NOTIFY_NAME)
        folder = os.open(self._run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            notices.bind(socket_address(folder, NOTIFY_NAME))
        finally:
            os.close(folder)
        notices.setblocking(False)
        self._notices = notices
        asyncio.get_running_loop().add_reader(notices, self._noticed)
        self._ensure_server()

    def close(self) -> None:
        """Lets go; supervisors and their guardian go on."""
        loop = asyncio.get_running_loop()
        for descriptor in self._watched.values():
            loop.remove_reader(descriptor)
            os.close(descriptor)
        self._watched.clear()
        if self._notices is not None:
            loop.remove_reader(self._notices)
            self._notices.close()
        self._drop_server()

    def _drop_server(self) -> None:
        if self._channel is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._channel)
            loop.remove_writer(self._channel)
            self._channel.close()
            self._channel = None
        if self._server is not None and self._server.poll() is None:
            # It ends by itself with its last supervisor; nobody here waits for it.
            self._server.returncode = 0
        self._server = None
        self._outgoing.clear()

    def _ensure_server(self) -> socket.socket:
        if self._channel is not None:
            return self._channel
        mine, theirs = socket.socketpair()
        log = os.open(self._home / "forkserver.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._server = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "courtier.adapters.process.forkserver",
                    str(theirs.fileno()),
                    str(self._home),
                    self._boot_id,
                    self._tag,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            mine.close()
            raise PortError("fork_server", f"the fork server could not be started: {error.strerror}") from error
        finally:
            theirs.close()
            os.close(log)
        mine.setblocking(False)
        self._channel = mine
        asyncio.get_running_loop().add_reader(mine, self._server_gone)
        return mine

    def _server_gone(self) -> None:
        """The fork server never writes: what can be read is its end. Unclaimed starts meet their deadline."""
        with contextlib.suppress(OSError):
            if self._channel is not None and self._channel.recv(1):
                return
        if self._server is not None:
            self._server.poll()
        self._drop_server()
        self._ensure_server()

    # Commands -------------------------------------------------------------------------------------

    def _folder(self, key: AttemptKey) -> Path:
        return self._run / str(key)

    def _make_folder(self, launch: Launch) -> None:
        folder = self._folder(launch.key)
        folder.mkdir(mode=0o700)
        if launch.owner is not None:
            # The user passes through to his job's socket; the files beside it stay closed to him.
            folder.chmod(0o711)

    def _grave(self, key: AttemptKey) -> Path:
        return self._run / REVOKED_NAME / str(key)

    def start(self, launch: Launch) -> None:
        if self._grave(launch.key).exists():
            return
        try:
            self._make_folder(launch)
        except FileExistsError:
            return
        except OSError as error:
            raise PortError("run_folder", f"{self._folder(launch.key)}: {error.strerror}") from error
        self._ensure_server()
        body = self._encoder.encode(launch)
        self._outgoing += LENGTH.pack(len(body)) + body
        self._flush()

    def _flush(self) -> None:
        channel = self._channel
        if channel is None:
            return
        loop = asyncio.get_running_loop()
        try:
            while self._outgoing:
                sent = channel.send(self._outgoing)
                del self._outgoing[:sent]
        except BlockingIOError:
            loop.add_writer(channel, self._flush)
            return
        except OSError:
            self._server_gone()
            return
        loop.remove_writer(channel)

    def stop(self, key: AttemptKey, cause: StopCause, *, grace_ms: int) -> None:
        # The supervisor may not have read the former wish yet: the file always holds the sum of all.
        former = self._limits.get(key, {}).get("stop")
        if former is not None:
            cause, grace_ms = StopCause(former["cause"]), min(former["grace_ms"], grace_ms)
        self._control(key, stop={"cause": cause.value, "grace_ms": grace_ms})

    def set_time_limit(self, key: AttemptKey, time_limit_ms: int | None) -> None:
        self._control(key, time_limit_ms=time_limit_ms)

    def _control(self, key: AttemptKey, **changes: Any) -> None:
        """Writes what is wanted, whole, then pokes: a supervisor that starts later reads it too."""
        folder = self._folder(key)
        wanted = self._limits.setdefault(key, {})
        wanted.update(changes)
        temporary = folder / f"{CONTROL_NAME}.new"
        try:
            temporary.write_text(json.dumps(wanted))
            temporary.replace(folder / CONTROL_NAME)
        except FileNotFoundError:
            return
        except OSError as error:
            raise PortError("control_file", f"{folder}: {error.strerror}") from error
        found = read_record(str(folder))
        if found is not None and found.claim is not None:
            signal_process(self._identity(found.claim), signal.SIGUSR1, self._boot_id)

    def signal(self, key: AttemptKey, number: int, *, leader_only: bool) -> bool:
        processes = self.processes_of(key)
        if leader_only:
            found = read_record(str(self._folder(key)))
            pid = found.start["pid"] if found is not None and found.start is not None else None
            processes = [identity for identity in processes if identity.pid == pid]
        signal_all(processes, number, self._boot_id)
        return bool(processes)

    def processes_of(self, key: AttemptKey) -> list[ProcessIdentity]:
        """Living processes of an attempt, its supervisor not counted."""
        found = read_record(str(self._folder(key)))
        if found is None or found.claim is None:
            return []
        supervisor = self._identity(found.claim)
        if is_alive(supervisor, self._boot_id):
            return descendants(supervisor.pid, self._boot_id)
        return marked(mark_of(self._tag, self._boot_id, str(key)).encode(), self._boot_id)

    def revoke(self, key: AttemptKey) -> AttemptStatus:
        """By renaming the folder, which needs no room on a full disk: a claim goes by the folder's name.

        The grave stays until the key is cleaned, so that no repeated start digs it up."""
        folder, grave = self._folder(key), self._grave(key)
        try:
            os.rename(folder, grave)
        except FileNotFoundError:
            with contextlib.suppress(OSError):
                grave.mkdir(mode=0o700)
            return AttemptStatus(key, AttemptPhase.REVOKED)
        except OSError as error:
            raise PortError("revoke", f"{folder}: {error.strerror}") from error
        if (grave / "record").exists():
            os.rename(grave, folder)
            return self._status(key)
        for path in grave.iterdir():
            with contextlib.suppress(OSError):
                path.unlink()
        return AttemptStatus(key, AttemptPhase.REVOKED)

    def clean(self, key: AttemptKey) -> None:
        self._unwatch(key)
        self._limits.pop(key, None)
        for folder in (self._folder(key), self._grave(key)):
            shutil.rmtree(folder, ignore_errors=True)

    def attempts_on_disk(self) -> list[AttemptKey]:
        """Every attempt that left traces, a grave too."""
        keys = set()
        for name in (*os.listdir(self._run), *os.listdir(self._run / REVOKED_NAME)):
            parts = name.split(".")
            if len(parts) == 3 and parts[0].isdigit() and parts[1].isdigit():
                keys.add(AttemptKey(int(parts[0]), int(parts[1]), parts[2]))
        return sorted(keys, key=str)

    # Observation ----------------------------------------------------------------------------------

    def observe(self, keys: Iterable[AttemptKey]) -> Sequence[AttemptStatus]:
        return [self._status(key) for key in keys]

    def _noticed(self) -> None:
        assert self._notices is not None
        while True:
            try:
                text = self._notices.recv(8192).decode("utf-8", "replace")
            except BlockingIOError:
                return
            name, _, rest = text.partition(" ")
            parts = name.split(".")
            if len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
                continue
            key = AttemptKey(int(parts[0]), int(parts[1]), parts[2])
            phase, _, error = rest.partition(" ")
            status = self._status(key)
            if phase == "refused" and status.phase is AttemptPhase.ABSENT:
                # Refused before the claim: nothing is on disk, so nobody may take it up any more.
                status = self.revoke(key)
                if status.phase is AttemptPhase.REVOKED:
                    status = AttemptStatus(key, AttemptPhase.REFUSED, error=error)
            self._report(status)

    def _identity(self, page: dict[str, Any]) -> ProcessIdentity:
        return ProcessIdentity(page.get("boot_id", self._boot_id), page["pid"], page["start_ticks"])

    def _status(self, key: AttemptKey) -> AttemptStatus:
        """What the record and the process table say. A dead supervisor's tree is emptied before VANISHED is said."""
        folder = self._folder(key)
        found = read_record(str(folder))
        if found is None or found.claim is None:
            phase = AttemptPhase.ABSENT if folder.exists() else AttemptPhase.REVOKED
            return AttemptStatus(key, phase)
        supervisor = self._identity(found.claim)
        if found.end is not None:
            self._unwatch(key)
            return _status_of(key, found, supervisor, AttemptPhase.ENDED)
        if supervisor.boot_id != self._boot_id:
            return _status_of(key, found, supervisor, AttemptPhase.VANISHED)
        if not is_alive(supervisor, self._boot_id):
            return self._dead(key, folder, supervisor)
        self._watch(key, supervisor)
        phase = AttemptPhase.CLAIMED
        if found.exit is not None:
            phase = AttemptPhase.COMPLETING
        elif found.start is not None:
            phase = AttemptPhase.RUNNING
        return _status_of(key, found, supervisor, phase)

    def _dead(self, key: AttemptKey, folder: Path, supervisor: ProcessIdentity) -> AttemptStatus:
        # It may have ended properly between the two looks: its last pages count.
        found = read_record(str(folder))
        assert found is not None
        self._unwatch(key)
        if found.end is not None:
            return _status_of(key, found, supervisor, AttemptPhase.ENDED)
        if not empty_attempt(self._tag, self._boot_id, str(key)):
            # Something does not die (a process in the kernel's hands): it still holds what it holds.
            phase = AttemptPhase.COMPLETING if found.exit is not None else AttemptPhase.RUNNING
            return _status_of(key, found, supervisor, phase)
        return _status_of(key, found, supervisor, AttemptPhase.VANISHED)

    def _watch(self, key: AttemptKey, supervisor: ProcessIdentity) -> None:
        if key in self._watched:
            return
        descriptor = open_pidfd(supervisor, self._boot_id)
        if descriptor is not None:
            self._watched[key] = descriptor
            self._supervisor_pids[supervisor.pid] = key
            asyncio.get_running_loop().add_reader(descriptor, self._supervisor_ended, key)

    def _supervisor_ended(self, key: AttemptKey) -> None:
        self._unwatch(key)
        if self._folder(key).exists():
            self._report(self._status(key))

    def _unwatch(self, key: AttemptKey) -> None:
        descriptor = self._watched.pop(key, None)
        if descriptor is not None:
            self._supervisor_pids = {pid: other for pid, other in self._supervisor_pids.items() if other != key}
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)


def _status_of(key: AttemptKey, found: Record, supervisor: ProcessIdentity, phase: AttemptPhase) -> AttemptStatus:
    start, exit_, end = found.start or {}, found.exit or {}, found.end or {}
    if "refused" in end:
        return AttemptStatus(key, AttemptPhase.REFUSED, error=end["refused"])
    leader = None
    if start:
        leader = ProcessIdentity(supervisor.boot_id, start["pid"], start["start_ticks"])
    cause = exit_.get("stop_cause") or (end.get("stop_cause") if not exit_ else None)
    return AttemptStatus(
        key=key,
        phase=phase,
        supervisor=supervisor,
        leader=leader,
        started_ms=start.get("started_ms"),
        finished_ms=end.get("finished_ms"),
        exit_code=exit_.get("exit_code"),
        signal=exit_.get("signal"),
        stop_cause=StopCause(cause) if cause is not None else None,
        oom_kills=end.get("oom_kills"),
        memory_bytes_peak=end.get("memory_bytes_peak"),
        cpu_ms=end.get("cpu_ms"),
        log_truncated=bool(end.get("log_truncated")),
        enforcement=start.get("enforcement"),
        error=exit_.get("error"),
    )
