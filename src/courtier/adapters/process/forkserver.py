"""Forks supervisors, and guards them: one small single-threaded process beside the daemon.

It outlives the daemon for as long as it has supervisors. When one of them dies without having recorded an
end, everything that it left behind is killed here: orphans come to their nearest living subreaper, which is
this process. Must never start a thread, and never touch an attempt whose supervisor lives.
"""

import contextlib
import gc
import os
import selectors
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable

import msgspec

from courtier.adapters.process.cgroup import job_folders, kill_folders, leave_service_cgroup, probe, remove_folders
from courtier.adapters.process.leader import PR_SET_CHILD_SUBREAPER, prctl
from courtier.adapters.process.record import read_record
from courtier.adapters.process.supervisor import Place, Supervisor, notify
from courtier.adapters.process.tree import marked, orphans, signal_all
from courtier.domain.attempts import ProcessIdentity
from courtier.engine.ports import Launch

LENGTH = struct.Struct(">I")
RECEIVE_BYTES = 1 << 18
KILL_ROUNDS_MAX = 200
# A killed process needs a moment to go; one that the kernel holds must not hold the guardian.
KILL_PAUSE_SECONDS = 0.002


class ForkServer:
    """Serves one daemon's socket until it closes and the last supervisor has ended."""

    def __init__(self, channel: socket.socket, home: str, boot_id: str, tag: str) -> None:
        self._channel: socket.socket | None = channel
        self._home = home
        self._boot_id = boot_id
        self._tag = tag
        self._supervisors: dict[int, Launch] = {}
        self._buffer = bytearray()
        self._decoder = msgspec.msgpack.Decoder(Launch)
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if self._channel is not None:
            self._selector.register(self._channel, selectors.EVENT_READ)
        self._selector.register(wake_read, selectors.EVENT_READ)
        self._own = (wake_read, wake_write)
        while self._channel or self._supervisors:
            for key, _ in self._selector.select():
                if key.fileobj == wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_read, 4096)
                else:
                    self._receive()
            self._reap()

    def _receive(self) -> None:
        assert self._channel is not None
        data = self._channel.recv(RECEIVE_BYTES)
        if not data:
            self._selector.unregister(self._channel)
            self._channel.close()
            self._channel = None
            # A half-read request was never acknowledged by a claim: the next daemon revokes it.
            self._buffer.clear()
            return
        self._buffer += data
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if len(self._buffer) < LENGTH.size + length:
                return
            launch = self._decoder.decode(bytes(self._buffer[LENGTH.size : LENGTH.size + length]))
            del self._buffer[: LENGTH.size + length]
            self._fork(launch)

    def _fork(self, launch: Launch) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            notify(self._home, f"{launch.key} refused fork: {error.strerror}")
            return
        if pid:
            self._supervisors[pid] = launch
            return
        code = 1
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            self._selector.close()
            for descriptor in (*self._own, self._channel.fileno() if self._channel is not None else -1):
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            Supervisor(launch, self._place(launch)).run()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _place(self, launch: Launch) -> Place:
        return Place(self._home, self._boot_id, cgroup_name(self._tag, str(launch.key)), self._mark(launch))

    def _mark(self, launch: Launch) -> str:
        return mark_of(self._tag, self._boot_id, str(launch.key))

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            launch = self._supervisors.pop(pid, None)
            if launch is not None:
                self._guard(launch)

    def _guard(self, launch: Launch) -> None:
        """A supervisor is gone; without an end on record its job has to go too."""
        found = read_record(f"{self._home}/run/{launch.key}")
        if found is None or found.end is not None:
            return
        empty_attempt(self._tag, self._boot_id, str(launch.key), self._orphans)
        notify(self._home, f"{launch.key} vanished")

    def _orphans(self) -> list[ProcessIdentity]:
        return orphans(os.getpid(), set(self._supervisors), self._boot_id)


def cgroup_name(tag: str, key: str) -> str:
    return f"courtier-{tag}/{key}"


def mark_of(tag: str, boot_id: str, key: str) -> str:
    return f"{tag}:{boot_id}:{key}"


def empty_attempt(tag: str, boot_id: str, key: str, more: Callable[[], list[ProcessIdentity]] | None = None) -> bool:
    """Kills whatever is left of an attempt whose supervisor is dead; whether it is empty now."""
    name = cgroup_name(tag, key)
    mark = mark_of(tag, boot_id, key).encode()
    for _ in range(KILL_ROUNDS_MAX):
        kill_folders(job_folders(name))
        left = marked(mark, boot_id)
        if more is not None:
            left += more()
        if not left:
            break
        signal_all(left, signal.SIGKILL, boot_id)
        for identity in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(identity.pid, os.WNOHANG)
        time.sleep(KILL_PAUSE_SECONDS)
    remove_folders(job_folders(name))
    return not marked(mark, boot_id)


def main() -> None:
    descriptor, home, boot_id, tag = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    channel = socket.socket(fileno=descriptor)
    channel.set_inheritable(False)
    probe()
    leave_service_cgroup(cgroup_name(tag, "supervisors"))
    server = ForkServer(channel, home, boot_id, tag)
    gc.collect()
    # What is here now is shared with every supervisor for good: the collector must not write to it.
    gc.freeze()
    server.run()


if __name__ == "__main__":
    main()
