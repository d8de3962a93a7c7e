"""The supervisor's side of attaching: who listens to the job, and the one who owns its terminal.

The owner gets every byte, and the job waits for it; an onlooker that is too slow loses output instead.
"""

import contextlib
import json
import os
import selectors
import socket
from collections.abc import Callable

from courtier.adapters.process.frames import SOCKET_NAME, FrameReader, frame, peer_of, socket_address
from courtier.engine.ports import Owner

BUFFER_BYTES_MAX = 1 << 20
RECEIVE_BYTES = 1 << 16


class Client:
    """One attached connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.reader = FrameReader()
        self.out = bytearray()
        self.owner = False
        self.attached = False


class Streams:
    """Listens in the attempt's folder. Callbacks: on_frame(client, kind, content), on_owner_gone()."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        directory: str,
        on_frame: Callable[[Client, bytes, bytes], None],
        on_owner_gone: Callable[[], None],
        user: Owner | None,
    ) -> None:
        self._uids = {0, os.geteuid()} | ({user.uid} if user is not None else set())
        self._selector = selector
        self._on_frame = on_frame
        self._on_owner_gone = on_owner_gone
        self.clients: list[Client] = []
        self.owner: Client | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{directory}/{SOCKET_NAME}")
            self._listener.bind(socket_address(folder, SOCKET_NAME))
        finally:
            os.close(folder)
        if user is not None:
            # Anybody may knock; who is let in is asked of the kernel.
            os.chmod(f"{directory}/{SOCKET_NAME}", 0o666)
        self._listener.listen(16)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self, _mask: int) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        peer = peer_of(connection)
        if peer is None or peer[1] not in self._uids:
            connection.close()
            return
        connection.setblocking(False)
        client = Client(connection)
        self.clients.append(client)
        self._selector.register(connection, selectors.EVENT_READ, lambda mask: self._serve(client, mask))

    def _serve(self, client: Client, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush(client)
        if mask & selectors.EVENT_READ and client in self.clients:
            self._receive(client)

    def _receive(self, client: Client) -> None:
        try:
            data = client.connection.recv(RECEIVE_BYTES)
            frames = client.reader.feed(data)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data, frames = b"", []
        if not data:
            self.drop(client)
            return
        for kind, content in frames:
            if kind == b"a" and not client.attached:
                client.attached = True
                client.owner = bool(json.loads(content or b"{}").get("own")) and self.owner is None
                if client.owner:
                    self.owner = client
            self._on_frame(client, kind, content)

    def drop(self, client: Client) -> None:
        if client not in self.clients:
            return
        self.clients.remove(client)
        self._selector.unregister(client.connection)
        client.connection.close()
        if client is self.owner:
            self.owner = None
            self._on_owner_gone()

    def send(self, kind: bytes, content: bytes) -> None:
        """To everybody attached."""
        for client in list(self.clients):
            if not client.attached or (not client.owner and len(client.out) > BUFFER_BYTES_MAX):
                continue
            client.out += frame(kind, content)
            self._flush(client)

    def _flush(self, client: Client) -> None:
        try:
            while client.out:
                sent = client.connection.send(client.out[:RECEIVE_BYTES])
                del client.out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.drop(client)
            return
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.out else 0)
        self._selector.modify(client.connection, mask, self._selector.get_key(client.connection).data)

    @property
    def owner_is_full(self) -> bool:
        """The owner has so much to read yet that the job should wait."""
        return self.owner is not None and len(self.owner.out) > BUFFER_BYTES_MAX

    def close(self, last: bytes) -> None:
        """Says the end to everybody and closes; the owner gets all that it is still owed."""
        for client in self.clients:
            client.connection.setblocking(True)
            client.connection.settimeout(5)
            with contextlib.suppress(OSError):
                client.connection.sendall(bytes(client.out) + (frame(b"x", last) if client.attached else b""))
            client.connection.close()
        self._listener.close()
