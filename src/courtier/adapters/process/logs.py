"""A job's log file under a cap: the beginning and the end are kept, what lies between goes.

Appends only; the file is never larger than its cap, and a full disk costs output, never the job.
"""

import os

MARK = b"\n[log truncated]\n"
CHUNK_BYTES = 1 << 20


class LogFile:
    """One file of output. Raises OSError when it cannot be opened."""

    def __init__(self, path: bytes, *, bytes_max: int, append: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY
        os.makedirs(os.path.dirname(path) or b".", exist_ok=True)
        self._descriptor = os.open(path, flags | (0 if append else os.O_TRUNC), 0o666)
        self._size = os.fstat(self._descriptor).st_size
        # Room for the mark and something on both sides of it.
        self._bytes_max = max(bytes_max, 4096)
        self._regular = os.path.isfile(f"/proc/self/fd/{self._descriptor}")
        # A pipe or a terminal that nobody reads must not stop the supervisor: what it does not take is left out.
        os.set_blocking(self._descriptor, self._regular)
        self._pending_mark = False
        self.truncated = False

    def write(self, data: bytes) -> None:
        """Appends; what the disk refuses is left out and marked."""
        view = memoryview(data)
        room = self._bytes_max // 4
        while view:
            piece = view[:room]
            view = view[room:]
            if self._regular and self._size + len(piece) + len(MARK) > self._bytes_max:
                self._compact()
            self._append(piece)

    def _append(self, piece: memoryview) -> None:
        try:
            if self._pending_mark:
                self._size += os.write(self._descriptor, MARK)
                self._pending_mark = False
            while piece:
                written = os.write(self._descriptor, piece)
                self._size += written
                piece = piece[written:]
        except OSError:
            self.truncated = self._pending_mark = True

    def _compact(self) -> None:
        """Keeps the first and the last quarter of the cap, in place: who follows the file sees it shrink."""
        quarter = self._bytes_max // 4
        self.truncated = True
        tail_from = max(quarter, self._size - quarter)
        try:
            # O_APPEND would send positioned writes to the end, so a second descriptor moves the tail.
            mover = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDWR | os.O_CLOEXEC)
            try:
                offset = quarter + os.pwrite(mover, MARK, quarter)
                while tail_from < self._size:
                    chunk = os.pread(mover, min(CHUNK_BYTES, self._size - tail_from), tail_from)
                    if not chunk:
                        break
                    offset += os.pwrite(mover, chunk, offset)
                    tail_from += len(chunk)
                os.ftruncate(mover, offset)
                self._size = offset
            finally:
                os.close(mover)
        except OSError:
            self._pending_mark = True

    def close(self) -> None:
        os.close(self._descriptor)
