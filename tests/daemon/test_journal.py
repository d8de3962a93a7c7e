"""A job's output as the API gives it: tails by lines, every byte once, and a log that was cut under its cap."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courtier.api.backend import ApiError, LogQuery
from courtier.daemon import journal
from courtier.daemon.journal import follow_log, read_log
from courtier.domain.lifecycle import JobState
from courtier.domain.workloads import Job
from makers import make_job, make_spec

# `run` until the third look at the job, then over: what came meanwhile has to be told.
RUNNING, ENDED = JobState.RUNNING, JobState.COMPLETED


def broker_of(home: Path, states: list[JobState], on_wait: Any = None) -> Any:
    left = list(states)

    async def wait_change(_ms: int) -> None:
        if on_wait is not None:
            on_wait()

    def find(number: int) -> Job:
        state = left.pop(0) if len(left) > 1 else left[0]
        return make_job(number, state)

    return SimpleNamespace(home=home, box=SimpleNamespace(hostname="box"), find=find, wait_change=wait_change)


def read(reader: Any, broker: Any, job: Job, query: LogQuery) -> tuple[int, bytes]:
    async def all_of_it() -> tuple[int, bytes]:
        start, chunks = reader(broker, job, query)
        return start, b"".join([chunk async for chunk in chunks])

    return asyncio.run(all_of_it())


def log_file(home: Path, content: bytes, name: str = "1.out") -> Path:
    path = home / "logs" / "0" / "1" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@given(st.lists(st.sampled_from([b"", b"a", b"bb", b"\xff" * 5]), max_size=8), st.booleans(), st.integers(0, 9))
def test_a_tail_is_the_last_lines(lines: list[bytes], ended: bool, wanted: int) -> None:
    import tempfile

    content = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    expected = b"".join(content.splitlines(keepends=True)[-wanted:]) if wanted else b""
    former = journal.CHUNK_BYTES
    journal.CHUNK_BYTES = 3  # so that lines lie across the borders of what is read at once
    try:
        with tempfile.TemporaryDirectory() as folder:
            log_file(Path(folder), content)
            broker = broker_of(Path(folder), [ENDED])
            start, found = read(read_log, broker, make_job(1), LogQuery(tail_lines=wanted))
    finally:
        journal.CHUNK_BYTES = former
    assert (found, start) == (expected, len(content) - len(expected))


def test_an_offset_is_where_reading_begins(tmp_path: Path) -> None:
    log_file(tmp_path, b"0123456789")
    broker = broker_of(tmp_path, [ENDED])
    assert read(read_log, broker, make_job(1), LogQuery(offset=7)) == (7, b"789")
    assert read(read_log, broker, make_job(1), LogQuery(offset=10)) == (10, b"")


def test_following_gives_what_comes_until_the_end(tmp_path: Path) -> None:
    path = log_file(tmp_path, b"one ")
    more = [b"two ", b"three"]

    def write() -> None:
        with path.open("ab") as file:
            file.write(more.pop(0))

    broker = broker_of(tmp_path, [RUNNING] * 4 + [ENDED], write)
    assert read(follow_log, broker, make_job(1, RUNNING), LogQuery()) == (0, b"one two three")


def test_a_log_that_shrank_is_read_on_from_its_new_end(tmp_path: Path) -> None:
    path = log_file(tmp_path, b"x" * 100)
    steps = [lambda: path.write_bytes(b"x" * 50), lambda: path.write_bytes(b"x" * 50 + b"new")]
    broker = broker_of(tmp_path, [RUNNING] * 5 + [ENDED], lambda: steps.pop(0)() if steps else None)
    assert read(follow_log, broker, make_job(1, RUNNING), LogQuery()) == (0, b"x" * 100 + b"new")


def test_a_log_that_is_not_there_is_empty_and_an_attempt_that_never_was_is_refused(tmp_path: Path) -> None:
    broker = broker_of(tmp_path, [ENDED])
    assert read(read_log, broker, make_job(1), LogQuery()) == (0, b"")
    for attempt in (0, 3):
        with pytest.raises(ApiError) as raised:
            read_log(broker, make_job(1, attempt=2), LogQuery(attempt=attempt))
        assert (raised.value.code, raised.value.exit_code) == ("attempt_unknown", 5)


def test_stderr_that_joins_stdout_is_given_once(tmp_path: Path) -> None:
    (tmp_path / "both").write_bytes(b"both")
    job = make_job(1, spec=make_spec(stdout=str(tmp_path / "both"), uid=os.geteuid()))
    broker = broker_of(tmp_path, [ENDED])
    assert read(read_log, broker, job, LogQuery())[1] == b"both"
    assert read(read_log, broker, job, LogQuery(stream="stderr"))[1] == b""


def test_a_log_that_is_a_pipe_is_empty_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    job = make_job(1, spec=make_spec(stdout=str(tmp_path / "pipe"), uid=os.geteuid()))
    broker = broker_of(tmp_path, [ENDED])
    assert read(read_log, broker, job, LogQuery()) == (0, b"")
    assert read(read_log, broker, job, LogQuery(tail_lines=3)) == (0, b"")
