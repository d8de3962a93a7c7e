"""What a server needs behind its routes, and the values that pass between them. The daemon implements `Backend`."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

from courtier.api.peer import Peer
from courtier.api.schema import CancelBody, ChangeBody, ManyGpus, SubmitBody, Submitted, Why


class ApiError(Exception):
    """An answer that is not 2xx: code and sentence, the CLI's exit code, the HTTP status, the numbers of the case."""

    def __init__(self, code: str, text: str, *, exit_code: int, status: int, numbers: dict[str, Any]) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.exit_code = exit_code
        self.status = status
        self.numbers = numbers


@dataclass(frozen=True, slots=True)
class JobQuery:
    """Filters of a listing; `all` adds ended jobs."""

    ids: tuple[int, ...] | None = None
    states: tuple[str, ...] | None = None
    user: str | None = None
    name: str | None = None
    limit: int | None = None
    all: bool = False


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    since_ms: int | None = None
    user: str | None = None
    states: tuple[str, ...] | None = None
    name: str | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class LogQuery:
    """stream is stdout or stderr; tail_lines wins over offset."""

    stream: str = "stdout"
    attempt: int | None = None
    offset: int = 0
    tail_lines: int | None = None
    follow: bool = False


class Backend(Protocol):
    """Answers as types or as an encoded document. Every method may raise ApiError."""

    async def health(self) -> dict[str, object]: ...
    async def submit(self, body: SubmitBody, peer: Peer | None) -> Submitted: ...
    async def jobs(self, query: JobQuery, peer: Peer | None) -> bytes: ...
    async def job(self, number: int, peer: Peer | None) -> bytes: ...
    async def why(self, number: int) -> Why: ...
    async def cancel(self, number: int, body: CancelBody, peer: Peer | None) -> bytes: ...
    async def hold(self, number: int, peer: Peer | None) -> bytes: ...
    async def release(self, number: int, peer: Peer | None) -> bytes: ...
    async def requeue(self, number: int, peer: Peer | None) -> bytes: ...
    async def change(self, number: int, body: ChangeBody, peer: Peer | None) -> bytes: ...
    async def wait(self, number: int, timeout_ms: int, until: str, peer: Peer | None) -> bytes: ...
    async def logs(self, number: int, query: LogQuery, peer: Peer | None) -> tuple[int, AsyncIterator[bytes]]: ...
    async def attach(self, number: int, timeout_ms: int, peer: Peer | None) -> dict[str, object]: ...
    async def history(self, query: HistoryQuery, peer: Peer | None) -> bytes: ...
    async def events(self, job: int | None, after: int, limit: int) -> bytes: ...
    def follow_events(self, job: int | None, after: int) -> AsyncIterator[bytes]: ...
    async def gpus(self) -> ManyGpus: ...
    async def drill(self, gpu: int, kind: str, value: int | None, peer: Peer | None) -> ManyGpus: ...
    async def doctor(self) -> dict[str, object]: ...
    async def shutdown(self, cancel_jobs: bool, peer: Peer | None) -> dict[str, object]: ...
