"""A light client of a broker: plain HTTP over its unix socket. Imports no engine and no event loop.

Raises NoBroker when nobody answers, and RequestRefused with the error document when the broker says no.
"""

import http.client
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

SOCKET_NAME = "broker.sock"
MACHINE_HOME = "/var/lib/courtier"
TIMEOUT_SECONDS = 120


class NoBroker(Exception):
    """No broker answers at this home."""

    def __init__(self, home: Path, why: str) -> None:
        super().__init__(
            f"no broker answers at {home} ({why}). Start one with: courtier up "
            "(courtier up --simulate 8xA100-80GB without GPUs)"
        )
        self.home = home


class RequestRefused(Exception):
    """The broker's answer was an error; `error` is its object."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error.get("text", "refused"))
        self.error = error

    @property
    def exit_code(self) -> int:
        return int(self.error.get("exit_code", 1))


def own_home() -> Path:
    """Where this user's broker keeps its state."""
    if named := os.environ.get("COURTIER_HOME"):
        return Path(named).absolute()
    if os.geteuid() == 0:
        return Path(MACHINE_HOME)
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "courtier"


def find_home() -> Path:
    """The broker to talk to: the named one, else the user's own, else the machine's."""
    own = own_home()
    if "COURTIER_HOME" in os.environ or (own / SOCKET_NAME).exists():
        return own
    machine = Path(MACHINE_HOME)
    return machine if (machine / SOCKET_NAME).exists() else own


class _Connection(http.client.HTTPConnection):
    def __init__(self, home: Path, timeout: float | None) -> None:
        super().__init__("localhost")
        self._home = home
        self._seconds = timeout

    def connect(self) -> None:
        # Through the open folder: a unix socket's own path ends at 107 bytes.
        folder = os.open(self._home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(self._seconds)
            self.sock.connect(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
        finally:
            os.close(folder)


class Client:
    """One broker, a connection a call: may be used by several threads."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = home if home is not None else find_home()

    def _send(
        self, method: str, path: str, body: Any, timeout: float | None
    ) -> tuple[_Connection, http.client.HTTPResponse]:
        return self._send_bytes(method, path, None if body is None else json.dumps(body).encode(), timeout)

    def _send_bytes(
        self, method: str, path: str, content: bytes | None, timeout: float | None
    ) -> tuple[_Connection, http.client.HTTPResponse]:
        connection = _Connection(self.home, timeout)
        try:
            connection.request(method, path, content, {"Content-Type": "application/json"} if content else {})
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise NoBroker(self.home, getattr(error, "strerror", None) or str(error) or type(error).__name__) from error
        return connection, response

    def raw(
        self, method: str, path: str, body: Any = None, *, timeout: float | None = TIMEOUT_SECONDS, **query: Any
    ) -> bytes:
        """The answer's bytes. Raises NoBroker, RequestRefused."""
        connection, response = self._send(method, _with_query(path, query), body, timeout)
        try:
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise NoBroker(self.home, "it went away while it answered") from error
        finally:
            connection.close()
        if response.status >= 400:
            raise RequestRefused(_error_of(content, response.status))
        return content

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> dict[str, Any]:
        """The answer as an object."""
        answer: dict[str, Any] = json.loads(self.raw(method, path, body, **query))
        return answer

    def stream(self, path: str, **query: Any) -> Iterator[bytes]:
        """Pieces of a streamed answer, as they come."""
        connection, response = self._send("GET", _with_query(path, query), None, None)
        try:
            if response.status >= 400:
                raise RequestRefused(_error_of(response.read(), response.status))
            while piece := response.read1(1 << 16):
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise NoBroker(self.home, "it went away while it answered") from error
        finally:
            connection.close()

    def health(self) -> dict[str, Any]:
        return self.call("GET", "/healthz", timeout=10)


def _with_query(path: str, query: dict[str, Any]) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _error_of(content: bytes, status: int) -> dict[str, Any]:
    try:
        error: dict[str, Any] = json.loads(content)["error"]
    except (ValueError, KeyError, TypeError):
        return {"code": "internal", "text": f"the broker answered with HTTP {status}", "exit_code": 1}
    return error
