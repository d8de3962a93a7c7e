"""Who is at the other end of a unix socket: read from the kernel for the accepted connection, never from a message."""

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """The connected process and its user."""

    pid: int
    uid: int
    gid: int
    user: str


def user_name(uid: int) -> str:
    """The login name, or the number where there is none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def peer_of(connection: socket.socket) -> Peer | None:
    """None for a connection that is not local."""
    if connection.family != socket.AF_UNIX:
        return None
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(packed)
    return Peer(pid, uid, gid, user_name(uid))


class PeerProtocol(H11Protocol):
    """HTTP/1.1 whose requests know their peer: `request.state.peer`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection: Any = transport.get_extra_info("socket")
        self.app_state = {**self.app_state, "peer": peer_of(connection)}
