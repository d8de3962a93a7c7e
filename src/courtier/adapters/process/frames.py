"""Frames between a supervisor and those attached to its job: one byte of kind, four of length, the content.

To the supervisor: a attach (JSON), i input, e end of input, w window size (JSON), s signal (JSON).
From it: o stdout, E stderr, x the end (JSON).
"""

import os
import socket
import struct

HEADER = struct.Struct(">cI")
_CREDENTIALS = struct.Struct("3i")
FRAME_BYTES_MAX = 1 << 20
SOCKET_NAME = "stream.sock"


def frame(kind: bytes, content: bytes = b"") -> bytes:
    return HEADER.pack(kind, len(content)) + content


class FrameReader:
    """Cuts a byte stream into frames. Raises ValueError on a frame too large."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        self._buffer += data
        frames = []
        while len(self._buffer) >= HEADER.size:
            kind, length = HEADER.unpack_from(self._buffer)
            if length > FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {length} bytes")
            if len(self._buffer) < HEADER.size + length:
                break
            frames.append((kind, bytes(self._buffer[HEADER.size : HEADER.size + length])))
            del self._buffer[: HEADER.size + length]
        return frames


def peer_of(connection: socket.socket) -> tuple[int, int, int] | None:
    """(pid, uid, gid) at the other end of a unix socket, as the kernel knows them; None where it does not say."""
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return None
    pid, uid, gid = _CREDENTIALS.unpack(packed)
    return pid, uid, gid


def socket_address(directory_fd: int, name: str) -> str:
    """A path short enough for a unix socket, whatever the folder's own path is (107 bytes are the most)."""
    return f"/proc/self/fd/{directory_fd}/{name}"


def connect_in(directory: str, name: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Connects to a socket in a folder. Raises OSError."""
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    connection = socket.socket(socket.AF_UNIX, kind)
    try:
        connection.connect(socket_address(folder, name))
    except OSError:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection
