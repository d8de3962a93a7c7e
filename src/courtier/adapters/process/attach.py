"""The client's side of attaching: joins a terminal, or plain streams, to a job through its supervisor's socket."""

import contextlib
import fcntl
import json
import os
import selectors
import signal
import struct
import termios
import tty
from typing import Any

from courtier.adapters.process.frames import SOCKET_NAME, FrameReader, connect_in, frame

READ_BYTES = 1 << 16


class Attachment:
    """One connection to a job. `pump` returns what the supervisor said at the end, or None when it vanished.

    Raises OSError from the constructor when there is nothing to attach to.
    """

    def __init__(self, directory: str, *, own: bool, terminal: bool) -> None:
        self._connection = connect_in(directory, SOCKET_NAME)
        self._terminal = terminal
        self._own = own
        size = _size() if terminal else {}
        self._connection.sendall(frame(b"a", json.dumps({"own": own, **size}).encode()))

    def close(self) -> None:
        """Leaves; an interactive job ends without its owner."""
        self._connection.close()

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(frame(b"s", json.dumps({"signal": number}).encode()))

    def pump(self, stdin: int, stdout: int, stderr: int) -> dict[str, Any] | None:
        saved = None
        if self._terminal and os.isatty(stdin):
            saved = termios.tcgetattr(stdin)
            # TCSANOW: what was typed ahead is the job's, and must not be thrown away.
            tty.setraw(stdin, termios.TCSANOW)
            signal.signal(signal.SIGWINCH, lambda *_: self._resize())
        try:
            return self._pump(stdin, {b"o": stdout, b"E": stderr})
        finally:
            if saved is not None:
                termios.tcsetattr(stdin, termios.TCSADRAIN, saved)
            self._connection.close()

    def _resize(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(frame(b"w", json.dumps(_size()).encode()))

    def _pump(self, stdin: int, outputs: dict[bytes, int]) -> dict[str, Any] | None:
        selector = selectors.DefaultSelector()
        selector.register(self._connection, selectors.EVENT_READ)
        reads_input = self._own and self._register_input(selector, stdin)
        reader = FrameReader()
        while True:
            for key, _ in selector.select():
                if key.fileobj is not self._connection:
                    data = os.read(stdin, READ_BYTES)
                    self._connection.sendall(frame(b"i", data) if data else frame(b"e"))
                    if not data and reads_input:
                        selector.unregister(stdin)
                        reads_input = False
                    continue
                data = self._connection.recv(READ_BYTES)
                if not data:
                    return None
                for kind, content in reader.feed(data):
                    if kind == b"x":
                        end: dict[str, Any] = json.loads(content)
                        return end
                    if kind in outputs:
                        _write_all(outputs[kind], content)

    def _register_input(self, selector: selectors.BaseSelector, stdin: int) -> bool:
        try:
            selector.register(stdin, selectors.EVENT_READ)
        except (PermissionError, ValueError, OSError):
            # A regular file cannot be waited for: it is all there, so it is sent at once.
            with contextlib.suppress(OSError):
                while data := os.read(stdin, READ_BYTES):
                    self._connection.sendall(frame(b"i", data))
            self._connection.sendall(frame(b"e"))
            return False
        return True


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _size() -> dict[str, int]:
    try:
        packed = fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8)
        rows, columns, _, _ = struct.unpack("HHHH", packed)
    except OSError:
        rows, columns = 24, 80
    return {"rows": rows, "columns": columns}
