"""Who a process on a GPU is, from /proc: its user and its command.

Kept by (pid, start time), so that a process that is known costs one small read.

Rule: a pid that the driver names but that does not exist here is a process of another pid namespace. Nobody with that
number here may then be taken for it, so while such pids are listed nothing is attributed.
"""

import os
import pwd
from dataclasses import dataclass

COMMAND_CHARACTERS_MAX = 256
# Looks that must both miss a pid: one that has just ended may still be in the driver's list.
MISSES_MIN = 2
ENTRIES_MAX = 8192


@dataclass(frozen=True, slots=True)
class Person:
    """A process's user and command line; None where they cannot be read."""

    user: str | None
    command: str | None


NOBODY = Person(None, None)


def in_first_namespace() -> bool:
    """Whether this is the pid namespace of the machine, where the kernel's own thread 2 is to be seen."""
    try:
        with open("/proc/2/comm", encoding="ascii") as file:
            return file.read() == "kthreadd\n"
    except OSError:
        return False


def start_time(pid: int) -> int | None:
    """Start of a process in ticks since boot, None when there is none. One that is just ending counts."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    return int(fields[19])


def exists(pid: int) -> bool:
    """Whether a pid is anybody's in this namespace, also where /proc hides it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _person(pid: int) -> Person:
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            raw = file.read(4 * COMMAND_CHARACTERS_MAX)
    except OSError:
        return NOBODY
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    words = raw.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "backslashreplace")
    command = "".join(letter if letter.isprintable() else "?" for letter in words)[:COMMAND_CHARACTERS_MAX]
    return Person(user, command or None)


class People:
    """Processes outside Courtier, looked up once each."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Person]] = {}
        self._misses: dict[tuple[str, int], int] = {}
        self._first_namespace = in_first_namespace()

    def living(self, uuid: str, pids: list[int]) -> dict[int, int]:
        """pid -> start time of those of a GPU's processes that are to be seen here; others are noted as missing."""
        found = {}
        missing: dict[tuple[str, int], int] = {}
        for pid in pids:
            begun = start_time(pid)
            if begun is not None:
                found[pid] = begun
            elif not self._first_namespace and not exists(pid):
                missing[(uuid, pid)] = self._misses.get((uuid, pid), 0) + 1
        self._misses = {key: count for key, count in self._misses.items() if key[0] != uuid} | missing
        return found

    @property
    def foreign(self) -> bool:
        """Whether the driver speaks of another pid namespace than this one."""
        return any(count >= MISSES_MIN for count in self._misses.values())

    def person(self, pid: int, begun: int) -> Person:
        known = self._known.get(pid)
        if known is not None and known[0] == begun:
            return known[1]
        if len(self._known) >= ENTRIES_MAX:
            self._known.clear()
        found = _person(pid)
        if start_time(pid) != begun:
            return NOBODY
        self._known[pid] = (begun, found)
        return found
