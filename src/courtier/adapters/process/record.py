"""The record of one attempt: who owns it, when it started, how it ended. Four pages of one file.

    page 0 claim   page 1 start   page 2 exit of the job's own process   page 3 end of its tree

The file is written in full before the job starts, so that its end needs no space on a full disk. A page
is JSON and its checksum; one that is torn or was never written reads as absent. Only a supervisor writes.
"""

import json
import os
import zlib
from dataclasses import dataclass
from typing import Any

PAGE_BYTES = 4096
PAGES = 4
CLAIM, START, EXIT, END = range(PAGES)
RECORD_NAME = "record"


def encode_page(content: dict[str, Any]) -> bytes:
    """Raises ValueError when the content does not fit a page."""
    body = json.dumps(content).encode()
    page = b"%08x %s\n" % (zlib.crc32(body), body)
    if len(page) > PAGE_BYTES:
        raise ValueError(f"a page of {len(page)} bytes")
    return page.ljust(PAGE_BYTES, b"\0")


def decode_page(page: bytes) -> dict[str, Any] | None:
    """None for a page that is absent or torn."""
    checksum, _, rest = page.rstrip(b"\0").partition(b" ")
    body = rest.rstrip(b"\n")
    try:
        if int(checksum, 16) != zlib.crc32(body):
            return None
        content = json.loads(body)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def claim(directory: str, content: dict[str, Any]) -> int:
    """Becomes the attempt's only owner; the descriptor of the record.

    Raises FileExistsError when it has an owner, FileNotFoundError when it was revoked, OSError when the disk
    refuses. The link goes by path, not by an open folder: a revoked attempt's folder has another name.
    """
    temporary = f"{directory}/{RECORD_NAME}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Real bytes, not a hole: the end of the job must find its place even when the disk is full.
        filler = b" " * PAGE_BYTES
        os.write(descriptor, encode_page(content) + filler * (PAGES - 1))
        os.fsync(descriptor)
        os.link(temporary, f"{directory}/{RECORD_NAME}")
    except OSError:
        os.close(descriptor)
        raise
    finally:
        try:
            os.unlink(temporary)
        except FileNotFoundError:
            pass
    return descriptor


def write_pages(descriptor: int, first: int, *contents: dict[str, Any]) -> None:
    """Writes consecutive pages in one go, on disk when it returns."""
    os.pwrite(descriptor, b"".join(encode_page(content) for content in contents), first * PAGE_BYTES)
    os.fdatasync(descriptor)


@dataclass(frozen=True, slots=True)
class Record:
    """The pages that are there."""

    claim: dict[str, Any] | None
    start: dict[str, Any] | None
    exit: dict[str, Any] | None
    end: dict[str, Any] | None


def read_record(directory: str) -> Record | None:
    """None when nobody claimed the attempt."""
    try:
        with open(f"{directory}/{RECORD_NAME}", "rb") as file:
            content = file.read(PAGE_BYTES * PAGES)
    except OSError:
        return None
    pages = [decode_page(content[n * PAGE_BYTES : (n + 1) * PAGE_BYTES]) for n in range(PAGES)]
    return Record(*pages)
