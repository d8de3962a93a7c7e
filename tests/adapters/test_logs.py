"""A log under its cap keeps its beginning and its end; a full disk or a pipe that nobody reads costs output only."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courtier.adapters.process.logs import MARK, LogFile

CAP = 4096


@given(st.lists(st.integers(1, 3000), max_size=25))
def test_beginning_and_end_stay_and_the_cap_holds(sizes: list[int]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        log = LogFile(os.fsencode(path), bytes_max=CAP, append=False)
        written = b""
        for size in sizes:
            # A count in words, so that every place of it can be told from every other.
            piece = b"".join(b"%05d " % n for n in range(len(written), len(written) + size, 6))[:size]
            log.write(piece)
            written += piece
            assert path.stat().st_size <= CAP
        log.close()
        kept = path.read_bytes()
        if not log.truncated:
            assert kept == written
            return
        assert len(written) > CAP - CAP // 4
        head, mark, _ = kept.partition(MARK)
        assert mark and written.startswith(head) and len(head) == CAP // 4
        assert written.endswith(kept.rpartition(MARK)[2])
        assert len(kept.rpartition(MARK)[2]) >= CAP // 4 or kept.count(MARK) > 1


def test_what_fits_is_not_cut(tmp_path: Path) -> None:
    log = LogFile(os.fsencode(tmp_path / "log"), bytes_max=CAP, append=False)
    log.write(b"x" * (CAP - len(MARK)))
    assert not log.truncated
    log.write(b"y")
    assert log.truncated
    log.close()


def test_append_keeps_and_the_other_empties(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "log"
    for append, expected in ((False, b"1"), (True, b"12"), (False, b"3")):
        log = LogFile(os.fsencode(path), bytes_max=CAP, append=append)
        log.write(expected[-1:])
        log.close()
        assert path.read_bytes() == expected


def test_a_full_disk_costs_output_and_is_said_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/full is a real ENOSPC; then the disk has room again."""
    log = LogFile(b"/dev/full", bytes_max=CAP, append=True)
    log.write(b"lost")
    assert log.truncated
    kept = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
    os.dup2(kept, log._descriptor)
    os.close(kept)
    log.write(b"after")
    log.write(b"wards")
    log.close()
    assert (tmp_path / "log").read_bytes() == MARK + b"afterwards"


def test_a_fifo_that_nobody_reads_does_not_stop_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    log = LogFile(os.fsencode(path), bytes_max=CAP, append=False)
    for _ in range(64):
        log.write(b"x" * 4096)
    assert log.truncated
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    assert set(os.read(reader, 1 << 20)) == set(b"x")
    log.write(b"later")
    assert os.read(reader, 100) == MARK + b"later"
    os.close(reader)
    log.close()


@pytest.mark.parametrize("path", [b"/dev/null/log", b"/proc/self"])
def test_a_log_that_cannot_be_opened_says_so(path: bytes) -> None:
    with pytest.raises(OSError, match=r"exists|directory"):
        LogFile(path, bytes_max=CAP, append=False)
