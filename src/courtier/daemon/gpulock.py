"""One broker for a machine's real GPUs: the kernel keeps the claim, and tells a second one who has it.

The claim is an abstract unix socket: it falls with its holder whatever kills it, and needs no file that somebody
else could have put there. It holds within one network namespace, as everything abstract does.
"""

import os
import socket
import struct

from courtier.api.peer import user_name
from courtier.engine.ports import PortError

NAME = "\0courtier/gpus"
ASK_SECONDS_MAX = 1.0
_CREDENTIALS = struct.Struct("3i")


def claim_gpus(name: str = NAME) -> socket.socket:
    """The claim, to be kept open. Raises PortError with the holder's pid, user and home."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(name)
        claim.listen(8)
        claim.setblocking(False)
    except OSError as error:
        claim.close()
        raise PortError("gpus_taken", f"the GPUs of this machine belong to another broker: {_holder(name)}") from error
    return claim


def answer_askers(claim: socket.socket) -> None:
    """Takes those who ask who it is out of the queue; the kernel has told them. For the holder's event loop."""
    try:
        while True:
            claim.accept()[0].close()
    except OSError:
        return


def _holder(name: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        # A holder that is stopped does not empty its queue: nobody waits for it.
        connection.settimeout(ASK_SECONDS_MAX)
        try:
            connection.connect(name)
            packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return "it does not say which"
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    return f"pid {pid} of {user_name(uid)}{_home_of(pid)}"


def _home_of(pid: int) -> str:
    """Its home, where its environment may be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = dict(pair.split(b"=", 1) for pair in file.read().split(b"\0") if b"=" in pair)
    except OSError:
        return ""
    home = pairs.get(b"COURTIER_HOME")
    return f", home {os.fsdecode(home)}" if home else ""
