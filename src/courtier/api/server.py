"""HTTP for a broker: routes only translate between the wire and the backend.

Bad input is an error document of the 4xx kind, never a 5xx; what fails inside is logged, and its traceback
never sent. Listens on the home's unix socket, and on TCP only when asked to and with a token.
"""

import contextlib
import hmac
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from courtier.api.backend import ApiError, Backend, HistoryQuery, JobQuery, LogQuery
from courtier.api.openapi import openapi_document
from courtier.api.peer import Peer, PeerProtocol
from courtier.api.schema import VERSION, CancelBody, ChangeBody, DrillBody, ShutdownBody, SubmitBody

log = logging.getLogger("courtier.api")
SOCKET_NAME = "broker.sock"
BODY_BYTES_MAX = 64 << 20
NUMBER_MAX = (1 << 63) - 1
STATES = [
    "pending",
    "held",
    "starting",
    "running",
    "completing",
    "completed",
    "failed",
    "cancelled",
    "timeout",
    "out_of_memory",
    "lost",
    "preempted",
]
_B = TypeVar("_B")
Handler = Callable[[Request], Awaitable[Response]]


def _bad(text: str, **numbers: Any) -> ApiError:
    return ApiError("invalid_request", text, exit_code=2, status=400, numbers=numbers)


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > NUMBER_MAX:
        raise _bad(f"{what} {text[:50]!r} is not a number from 0 to {NUMBER_MAX}")
    return int(text)


class Query:
    """The query string, strictly: a name may come once, unknown names are refused."""

    def __init__(self, request: Request, known: str) -> None:
        self._values: dict[str, str] = {}
        for name, value in request.query_params.multi_items():
            if name not in known.split():
                raise _bad(f"no parameter {name[:50]!r} here: there are {known}")
            if name in self._values:
                raise _bad(f"parameter {name} is given twice")
            self._values[name] = value

    def text(self, name: str) -> str | None:
        return self._values.get(name) or None

    def number(self, name: str) -> int | None:
        value = self._values.get(name)
        return _number(value, name) if value is not None else None

    def flag(self, name: str) -> bool:
        value = self._values.get(name, "0")
        if value not in ("0", "1", "true", "false"):
            raise _bad(f"{name} is 0 or 1, not {value[:50]!r}")
        return value in ("1", "true")

    def numbers(self, name: str) -> tuple[int, ...] | None:
        value = self._values.get(name)
        return tuple(_number(word, name) for word in value.split(",")) if value is not None else None

    def states(self, name: str) -> tuple[str, ...] | None:
        value = self._values.get(name)
        if value is None:
            return None
        words = tuple(value.split(","))
        for word in words:
            if word not in STATES:
                raise _bad(f"no state {word[:50]!r}: there are {', '.join(STATES)}")
        return words

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self._values.get(name, choices[0])
        if value not in choices:
            raise _bad(f"{name} is one of {', '.join(choices)}, not {value[:50]!r}")
        return value


async def _body(request: Request, kind: type[_B]) -> _B:
    """The JSON body as a type; an empty body is an empty object."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise ApiError(
                "body_too_large", f"a body of more than {BODY_BYTES_MAX} bytes", exit_code=2, status=413, numbers={}
            )
        parts.append(part)
    try:
        return msgspec.json.decode(b"".join(parts) or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _bad(f"the body is not understood: {error}") from error
    except RecursionError:
        raise _bad("the body is nested too deeply") from None


def _job_number(request: Request) -> int:
    return _number(request.path_params["job"], "job")


def _json(content: Any, status: int = 200) -> Response:
    body = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return Response(body, status, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """The error document; the numbers of the case are fields beside code and text."""
    document = {
        **{name: value for name, value in error.numbers.items() if name not in ("code", "text", "exit_code")},
        "code": error.code,
        "text": error.text,
        "exit_code": error.exit_code,
    }
    return _json({"version": VERSION, "error": document}, error.status)


class Routes:
    """One method a route."""

    def __init__(self, backend: Backend, token: str | None) -> None:
        self._backend = backend
        self._token = token

    def peer(self, request: Request) -> Peer | None:
        """Who asks. A connection that is not local must show the token."""
        peer: Peer | None = getattr(request.state, "peer", None)
        if peer is None:
            shown = request.headers.get("authorization", "").removeprefix("Bearer ")
            if self._token is None or not hmac.compare_digest(shown.encode(), self._token.encode()):
                raise ApiError("not_allowed", "a valid token is needed", exit_code=4, status=401, numbers={})
        return peer

    async def health(self, request: Request) -> Response:
        return _json(await self._backend.health())

    async def openapi(self, request: Request) -> Response:
        return _json(openapi_document())

    async def submit(self, request: Request) -> Response:
        body = await _body(request, SubmitBody)
        made = await self._backend.submit(body, self.peer(request))
        return _json(made, 200 if made.existing or made.dry_run else 201)

    async def jobs(self, request: Request) -> Response:
        query = Query(request, "state user name ids limit all")
        return _json(
            await self._backend.jobs(
                JobQuery(
                    ids=query.numbers("ids"),
                    states=query.states("state"),
                    user=query.text("user"),
                    name=query.text("name"),
                    limit=query.number("limit"),
                    all=query.flag("all"),
                ),
                self.peer(request),
            )
        )

    async def job(self, request: Request) -> Response:
        return _json(await self._backend.job(_job_number(request), self.peer(request)))

    async def why(self, request: Request) -> Response:
        return _json(await self._backend.why(_job_number(request)))

    async def cancel(self, request: Request) -> Response:
        body = await _body(request, CancelBody)
        return _json(await self._backend.cancel(_job_number(request), body, self.peer(request)))

    async def hold(self, request: Request) -> Response:
        return _json(await self._backend.hold(_job_number(request), self.peer(request)))

    async def release(self, request: Request) -> Response:
        return _json(await self._backend.release(_job_number(request), self.peer(request)))

    async def requeue(self, request: Request) -> Response:
        return _json(await self._backend.requeue(_job_number(request), self.peer(request)))

    async def change(self, request: Request) -> Response:
        body = await _body(request, ChangeBody)
        return _json(await self._backend.change(_job_number(request), body, self.peer(request)))

    async def wait(self, request: Request) -> Response:
        query = Query(request, "timeout_ms until")
        timeout_ms = query.number("timeout_ms")
        until = query.choice("until", ("ended", "started"))
        number = _job_number(request)
        wait_ms = 30_000 if timeout_ms is None else timeout_ms
        return _json(await self._backend.wait(number, wait_ms, until, self.peer(request)))

    async def logs(self, request: Request) -> Response:
        query = Query(request, "stream attempt offset tail_lines follow")
        wanted = LogQuery(
            stream=query.choice("stream", ("stdout", "stderr")),
            attempt=query.number("attempt"),
            offset=query.number("offset") or 0,
            tail_lines=query.number("tail_lines"),
            follow=query.flag("follow"),
        )
        offset, chunks = await self._backend.logs(_job_number(request), wanted, self.peer(request))
        return StreamingResponse(
            chunks, media_type="application/octet-stream", headers={"X-Courtier-Offset": str(offset)}
        )

    async def attach(self, request: Request) -> Response:
        query = Query(request, "timeout_ms")
        timeout_ms = query.number("timeout_ms") or 0
        return _json(await self._backend.attach(_job_number(request), timeout_ms, self.peer(request)))

    async def history(self, request: Request) -> Response:
        query = Query(request, "since_ms user state name limit")
        wanted = HistoryQuery(
            since_ms=query.number("since_ms"),
            user=query.text("user"),
            states=query.states("state"),
            name=query.text("name"),
            limit=query.number("limit"),
        )
        return _json(await self._backend.history(wanted, self.peer(request)))

    async def events(self, request: Request) -> Response:
        query = Query(request, "job after limit follow")
        job, after = query.number("job"), query.number("after") or 0
        if query.flag("follow"):
            return StreamingResponse(self._backend.follow_events(job, after), media_type="application/x-ndjson")
        limit = query.number("limit")
        return _json(await self._backend.events(job, after, NUMBER_MAX if limit is None else limit))

    async def gpus(self, request: Request) -> Response:
        return _json(await self._backend.gpus())

    async def drill(self, request: Request) -> Response:
        body = await _body(request, DrillBody)
        gpu = _number(request.path_params["gpu"], "gpu")
        return _json(await self._backend.drill(gpu, body.kind, body.value, self.peer(request)))

    async def doctor(self, request: Request) -> Response:
        return _json(await self._backend.doctor())

    async def shutdown(self, request: Request) -> Response:
        body = await _body(request, ShutdownBody)
        return _json(await self._backend.shutdown(body.cancel_jobs, self.peer(request)))

    def guarded(self, handler: Handler) -> Handler:
        """Who may not ask gets no further; whatever goes wrong becomes an error document."""

        async def answer(request: Request) -> Response:
            try:
                self.peer(request)
                return await handler(request)
            except ApiError as error:
                return error_response(error)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                log.exception("%s %s failed", request.method, request.url.path, exc_info=error)
                text = "the broker failed on this request; its log says where"
                return error_response(ApiError("internal", text, exit_code=1, status=500, numbers={}))

        return answer


def _http_error(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = {404: "path_unknown", 405: "method_not_allowed"}.get(status, "invalid_request")
    text = error.detail if isinstance(error, HTTPException) else "the request could not be read"
    response = error_response(ApiError(code, text, exit_code=2, status=status, numbers={}))
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response


def create_app(backend: Backend, *, token: str | None = None) -> Starlette:
    """The application over one backend."""
    routes = Routes(backend, token)
    table: list[tuple[str, str, Handler]] = [
        ("GET", "/healthz", routes.health),
        ("GET", "/openapi.json", routes.openapi),
        ("POST", "/v1/jobs", routes.submit),
        ("GET", "/v1/jobs", routes.jobs),
        ("GET", "/v1/jobs/{job}", routes.job),
        ("GET", "/v1/jobs/{job}/why", routes.why),
        ("POST", "/v1/jobs/{job}/cancel", routes.cancel),
        ("POST", "/v1/jobs/{job}/hold", routes.hold),
        ("POST", "/v1/jobs/{job}/release", routes.release),
        ("POST", "/v1/jobs/{job}/requeue", routes.requeue),
        ("POST", "/v1/jobs/{job}/set", routes.change),
        ("GET", "/v1/jobs/{job}/wait", routes.wait),
        ("GET", "/v1/jobs/{job}/logs", routes.logs),
        ("GET", "/v1/jobs/{job}/attach", routes.attach),
        ("GET", "/v1/history", routes.history),
        ("GET", "/v1/events", routes.events),
        ("GET", "/v1/gpus", routes.gpus),
        ("POST", "/v1/gpus/{gpu}/drill", routes.drill),
        ("GET", "/v1/doctor", routes.doctor),
        ("POST", "/v1/shutdown", routes.shutdown),
    ]
    return Starlette(
        routes=[Route(path, routes.guarded(handler), methods=[method]) for method, path, handler in table],
        exception_handlers={HTTPException: _http_error},
    )


def _unix_socket(path: Path) -> socket.socket:
    """Bound through the open folder: a unix socket's own path ends at 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
    # Root's broker serves everybody, and asks the kernel who calls.
    path.chmod(0o666 if os.geteuid() == 0 else 0o600)
    listener.listen(1024)
    return listener


class Server(uvicorn.Server):
    """Signals are the broker's, not the server's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(app: Starlette, unix_path: Path, tcp: tuple[str, int] | None) -> tuple[uvicorn.Server, list[socket.socket]]:
    """A server and the sockets to run it on. Raises OSError when one cannot be bound."""
    sockets = [_unix_socket(unix_path)]
    if tcp is not None:
        sockets.append(socket.create_server(tcp, family=socket.AF_INET6 if ":" in tcp[0] else socket.AF_INET))
    config = uvicorn.Config(
        app,
        http=PeerProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=75,
    )
    return Server(config), sockets
