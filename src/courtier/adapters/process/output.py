"""What a job writes and reads: pipes or a pseudo terminal on one side, log files and attached clients on the other.

The supervisor passes every byte on, so that a log has a cap and a tail is never lost. Input comes from the
owner of an interactive job only.
"""

import contextlib
import fcntl
import os
import pty
import selectors
import struct
import termios
from collections.abc import Callable
from typing import Any

from courtier.adapters.process.credentials import acting_as
from courtier.adapters.process.logs import LogFile
from courtier.adapters.process.stream import Client, Streams
from courtier.engine.ports import Launch

READ_BYTES = 1 << 16


class Output:
    """Raises OSError when a log file cannot be opened."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        launch: Launch,
        directory: str,
        on_frame: Callable[[Any, bytes, bytes], None],
        on_owner_gone: Callable[[], None],
    ) -> None:
        self._selector = selector
        self._logs: dict[bytes, LogFile] = {}
        out = self._log(launch.stdout_path, launch, users=launch.stdout_is_users)
        err = self._log(launch.stderr_path, launch, users=launch.stderr_is_users)
        self._streams = Streams(selector, directory, self._frame, on_owner_gone, launch.owner)
        self._on_frame = on_frame
        self._sources: dict[int, tuple[bytes, LogFile]] = {}
        self._input: int | None = None
        self._input_pending = bytearray()
        self._input_ended = False
        self._paused = False
        self._terminal: int | None = None
        if launch.terminal:
            master, slave = pty.openpty()
            if launch.owner is not None:
                os.fchown(slave, launch.owner.uid, -1)
            self._terminal = self._input = master
            self._ends: tuple[int, ...] = (slave, slave, slave)
            self._add(master, b"o", out)
        else:
            out_read, out_write = os.pipe2(os.O_CLOEXEC)
            err_read, err_write = os.pipe2(os.O_CLOEXEC)
            if launch.interactive:
                stdin, self._input = os.pipe2(os.O_CLOEXEC)
            else:
                stdin = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            self._ends = (stdin, out_write, err_write)
            self._add(out_read, b"o", out)
            self._add(err_read, b"E", err)
        if self._input is not None:
            os.set_blocking(self._input, False)

    def _log(self, path: bytes, launch: Launch, *, users: bool) -> LogFile:
        """A file that the user named is opened with his rights and umask, and never with root's."""
        if path not in self._logs:
            mask = os.umask(launch.umask if users else 0o077)
            try:
                with acting_as(launch.owner if users else None):
                    self._logs[path] = LogFile(path, bytes_max=launch.log_bytes_max, append=launch.append_logs)
            finally:
                os.umask(mask)
        return self._logs[path]

    def _add(self, descriptor: int, kind: bytes, log: LogFile) -> None:
        os.set_blocking(descriptor, False)
        self._sources[descriptor] = (kind, log)
        self._selector.register(descriptor, selectors.EVENT_READ, lambda mask: self._ready(descriptor, mask))

    @property
    def terminal_path(self) -> str | None:
        """The job's pseudo terminal, where it has one."""
        return os.ttyname(self._ends[0]) if self._terminal is not None else None

    def child_ends(self) -> tuple[int, int, int]:
        stdin, stdout, stderr = self._ends
        return stdin, stdout, stderr

    def close_child_ends(self) -> None:
        for descriptor in set(self._ends):
            os.close(descriptor)

    def resize(self, size: dict[str, Any]) -> None:
        if self._terminal is not None and size.get("rows"):
            packed = struct.pack("HHHH", int(size["rows"]), int(size["columns"]), 0, 0)
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, packed)

    def _ready(self, descriptor: int, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._write_input()
        if mask & selectors.EVENT_READ:
            self._pump(descriptor)

    def _pump(self, descriptor: int) -> bool:
        """Passes one piece on; False when there is nothing more for now, or for ever."""
        kind, log = self._sources[descriptor]
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
            del self._sources[descriptor]
            if descriptor != self._input:
                os.close(descriptor)
            return False
        log.write(data)
        self._streams.send(kind, data)
        return True

    def balance(self) -> None:
        """Lets the job wait while its owner cannot keep up."""
        full = self._streams.owner_is_full
        if full is self._paused:
            return
        self._paused = full
        for descriptor in self._sources:
            if full:
                self._selector.unregister(descriptor)
            else:
                self._selector.register(
                    descriptor, selectors.EVENT_READ, lambda mask, fd=descriptor: self._ready(fd, mask)
                )

    def _frame(self, client: Client, kind: bytes, content: bytes) -> None:
        if kind == b"i" and client.owner:
            self._input_pending += content
            self._write_input()
        elif kind == b"e" and client.owner:
            self._input_ended = True
            self._write_input()
        else:
            self._on_frame(client, kind, content)

    def _write_input(self) -> None:
        if self._input is None:
            return
        try:
            while self._input_pending:
                written = os.write(self._input, self._input_pending[:READ_BYTES])
                del self._input_pending[:written]
        except BlockingIOError:
            pass
        except OSError:
            self._input_pending.clear()
            self._input_ended = True
        if self._terminal is not None:
            return
        if self._input_pending:
            with contextlib.suppress(KeyError):
                self._selector.register(self._input, selectors.EVENT_WRITE, lambda _mask: self._write_input())
            return
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._input)
        if self._input_ended:
            os.close(self._input)
            self._input = None

    def drain(self) -> bool:
        """Passes on what is left once nobody can write any more; whether anything was cut."""
        for descriptor in list(self._sources):
            while descriptor in self._sources and self._pump(descriptor):
                pass
        return any(log.truncated for log in self._logs.values())

    def close(self, last: bytes) -> None:
        self._streams.close(last)
        for log in self._logs.values():
            log.close()
