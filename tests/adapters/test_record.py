"""The record of an attempt: torn pages are absent, a claim has one winner, the end needs no space and is on disk."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courtier.adapters.process import record
from courtier.adapters.process.record import (
    PAGE_BYTES,
    PAGES,
    claim,
    decode_page,
    encode_page,
    read_record,
    write_pages,
)

values = st.none() | st.booleans() | st.integers() | st.text(max_size=20)
pages = st.dictionaries(st.text(max_size=10), values, max_size=8)


@given(pages)
def test_a_page_comes_back_as_it_was(content: dict[str, object]) -> None:
    page = encode_page(content)
    assert len(page) == PAGE_BYTES
    assert decode_page(page) == content


@given(pages, st.integers(0, 200), st.integers(1, 255))
def test_a_page_with_one_wrong_byte_is_absent(content: dict[str, object], place: int, change: int) -> None:
    page = bytearray(encode_page(content))
    used = len(page.rstrip(b"\0")) - 1  # the line's end is no part of what the checksum covers
    place %= used
    page[place] ^= change
    assert decode_page(bytes(page)) in (None, content)
    if place > 9:
        assert decode_page(bytes(page)) is None


@given(st.binary(max_size=64))
def test_what_is_no_page_is_absent(junk: bytes) -> None:
    assert decode_page(junk.ljust(PAGE_BYTES, b"\0")) is None
    assert decode_page(b" " * PAGE_BYTES) is None


def test_a_torn_page_is_absent_and_the_others_stay(tmp_path: Path) -> None:
    descriptor = claim(str(tmp_path), {"pid": 1})
    write_pages(descriptor, record.START, {"pid": 2, "text": "x" * 1000})
    os.pwrite(descriptor, encode_page({"pid": 9, "text": "y" * 1000})[:500], record.START * PAGE_BYTES)
    os.close(descriptor)
    found = read_record(str(tmp_path))
    assert found is not None
    assert (found.claim, found.start, found.exit, found.end) == ({"pid": 1}, None, None, None)


def test_a_page_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes"):
        encode_page({"text": "x" * PAGE_BYTES})


def test_of_many_who_claim_one_wins_and_leaves_one_file(tmp_path: Path) -> None:
    """Processes as claimants: a temporary file is named by pid."""
    barrier_read, barrier_write = os.pipe()
    pids = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            code = 2
            try:
                os.close(barrier_write)
                os.read(barrier_read, 1)
                claim(str(tmp_path), {"pid": os.getpid()})
                code = 0
            except FileExistsError:
                code = 1
            finally:
                os._exit(code)
        pids.append(pid)
    os.close(barrier_read)
    os.close(barrier_write)
    codes = {pid: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids}
    assert sorted(codes.values()) == [0] + [1] * 7
    found = read_record(str(tmp_path))
    assert found is not None and found.claim is not None
    assert codes[found.claim["pid"]] == 0
    assert os.listdir(tmp_path) == ["record"]


def test_a_revoked_folder_cannot_be_claimed(tmp_path: Path) -> None:
    folder = tmp_path / "1.1.1"
    folder.mkdir()
    folder.rename(tmp_path / "grave")
    with pytest.raises(FileNotFoundError):
        claim(str(folder), {"pid": 1})
    assert read_record(str(folder)) is None


def test_a_revocation_in_the_middle_of_a_claim_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "1.1.1"
    folder.mkdir()
    fsync = os.fsync

    def revoked_meanwhile(descriptor: int) -> None:
        fsync(descriptor)
        folder.rename(tmp_path / "grave")

    monkeypatch.setattr(os, "fsync", revoked_meanwhile)
    with pytest.raises(FileNotFoundError):
        claim(str(folder), {"pid": 1})
    assert not (tmp_path / "grave" / "record").exists()


def test_a_claim_is_on_disk_before_it_is_seen_and_so_is_every_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    for name in ("fsync", "fdatasync", "link", "pwrite"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, n=name, call=real: (seen.append(n), call(*args))[1])
    descriptor = claim(str(tmp_path), {"pid": 1})
    assert seen == ["fsync", "link"]
    assert os.fstat(descriptor).st_size == PAGE_BYTES * PAGES
    assert os.fstat(descriptor).st_blocks * 512 >= PAGE_BYTES * PAGES
    write_pages(descriptor, record.EXIT, {"exit_code": 0}, {"finished_ms": 1})
    assert seen[2:] == ["pwrite", "fdatasync"]
    os.close(descriptor)


def test_a_refused_claim_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="space"):
        claim(str(tmp_path), {"pid": 1})
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == before
