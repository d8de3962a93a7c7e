"""A job's output as the API gives it: what is there, its tail, or what comes until the job has ended.

Reads the log files only. A file that was compacted under its cap is read on from its new end.
"""

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from courtier.adapters.process.credentials import acting_as
from courtier.api.backend import ApiError, LogQuery
from courtier.daemon.access import owner_of
from courtier.daemon.broker import Broker
from courtier.daemon.environment import log_owners, log_paths
from courtier.domain.lifecycle import ENDED
from courtier.domain.workloads import Job
from courtier.engine.ports import Owner, PortError

CHUNK_BYTES = 1 << 18
# How often a followed file is looked at; changes of the job itself wake at once.
FOLLOW_MS = 100


@dataclass(frozen=True, slots=True)
class _Source:
    """A file, and whose rights open it (None: the broker's own): a path that a user named may lead anywhere."""

    path: bytes
    owner: Owner | None

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """The descriptor of a regular file; never waits. Raises OSError."""
        if not self.path:
            raise FileNotFoundError
        with acting_as(self.owner):
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise FileNotFoundError
            yield descriptor
        finally:
            os.close(descriptor)


def _source(broker: Broker, job: Job, query: LogQuery) -> _Source:
    if query.attempt is not None and not 1 <= query.attempt <= job.attempt:
        text = f"job {job.id} has attempts 1 to {job.attempt}, not {query.attempt}"
        raise ApiError("attempt_unknown", text, exit_code=5, status=404, numbers={"attempt": query.attempt})
    stdout, stderr = log_paths(job, broker.home, broker.box.hostname, attempt=query.attempt)
    if query.stream == "stderr":
        # Where both go to one file it is stdout's; asking for stderr then gives nothing twice.
        path, users = (b"" if stderr == stdout else stderr), log_owners(job)[1]
    else:
        path, users = stdout, log_owners(job)[0]
    try:
        return _Source(path, owner_of(job.spec) if users else None)
    except PortError as error:
        raise ApiError(error.code, error.text, exit_code=1, status=409, numbers={"job": job.id}) from error


def _start(source: _Source, query: LogQuery) -> int:
    if query.tail_lines is None:
        return query.offset
    try:
        with source.opened() as descriptor:
            return _tail_offset(descriptor, os.fstat(descriptor).st_size, query.tail_lines)
    except OSError:
        return 0


def _tail_offset(descriptor: int, size: int, lines: int) -> int:
    """Where the last `lines` lines begin."""
    end, missing = size, lines
    if size and os.pread(descriptor, 1, size - 1) == b"\n":
        missing += 1
    if missing == 0:
        return size
    while end > 0:
        begin = max(0, end - CHUNK_BYTES)
        chunk = os.pread(descriptor, end - begin, begin)
        place = len(chunk)
        while missing > 0:
            place = chunk.rfind(b"\n", 0, place)
            if place < 0:
                break
            missing -= 1
        if missing == 0:
            return begin + place + 1
        end = begin
    return 0


def _read(source: _Source, offset: int) -> tuple[bytes, int]:
    """A chunk and the offset after it; a file shorter than the offset was compacted, so its end is where to go on."""
    try:
        with source.opened() as descriptor:
            size = os.fstat(descriptor).st_size
            if size < offset:
                return b"", size
            chunk = os.pread(descriptor, CHUNK_BYTES, offset)
            return chunk, offset + len(chunk)
    except OSError:
        return b"", offset


def read_log(broker: Broker, job: Job, query: LogQuery) -> tuple[int, AsyncIterator[bytes]]:
    """What is there now."""
    source = _source(broker, job, query)
    start = _start(source, query)

    async def chunks() -> AsyncIterator[bytes]:
        offset = start
        while True:
            chunk, offset = _read(source, offset)
            if not chunk:
                return
            yield chunk

    return start, chunks()


def follow_log(broker: Broker, job: Job, query: LogQuery) -> tuple[int, AsyncIterator[bytes]]:
    """What is there and what comes, until the job has ended and all is read."""
    source = _source(broker, job, query)
    start = _start(source, query)

    async def chunks() -> AsyncIterator[bytes]:
        offset = start
        while True:
            row = broker.find(job.id)
            ended = row is None or row.state in ENDED or (query.attempt or row.attempt) < row.attempt
            chunk, offset = _read(source, offset)
            if chunk:
                yield chunk
            elif ended:
                return
            else:
                await broker.wait_change(FOLLOW_MS)
                await asyncio.sleep(0)

    return start, chunks()
