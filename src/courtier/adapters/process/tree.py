"""The processes of a job: who descends from a supervisor, who carries a job's mark, and how to end them all.

A descendant is signalled by pidfd, after a second look at whose child it is: pids are reused.
"""

import os
import signal

from courtier.adapters.process.identity import identify, signal_process, stat_fields
from courtier.domain.attempts import ProcessIdentity

MARK_NAME = b"COURTIER_MARK"


def parents() -> dict[int, int]:
    """pid -> parent pid of every process that can be seen."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = stat_fields(int(name))
            if fields is not None and fields[0] not in (b"Z", b"X"):
                table[int(name)] = int(fields[1])
    return table


def descendants(root: int, boot: str) -> list[ProcessIdentity]:
    """All living processes below `root`, itself not counted."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found: list[ProcessIdentity] = []
    todo = [root]
    while todo:
        for pid in children.get(todo.pop(), ()):
            identity = identify(pid, boot)
            if identity is not None:
                found.append(identity)
            todo.append(pid)
    return found


def orphans(root: int, kept: set[int], boot: str) -> list[ProcessIdentity]:
    """Processes that descend from `root` and from none of its children in `kept`.

    Judged from one look at the process table, by each one's own ancestors: a process that a kept child forks
    during the look has that child above it, whenever it appears.
    """
    table = parents()
    found = []
    for pid in table:
        above = pid
        while above in table and above not in kept and table[above] != root:
            above = table[above]
        if above in table and above not in kept:
            identity = identify(pid, boot)
            if identity is not None:
                found.append(identity)
    return found


def marked(mark: bytes, boot: str) -> list[ProcessIdentity]:
    """Living processes whose environment carries the mark of one attempt of this boot."""
    wanted = MARK_NAME + b"=" + mark
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            identity = identify(int(name), boot)
            if identity is not None and identity.pid != os.getpid():
                found.append(identity)
    return found


def signal_all(processes: list[ProcessIdentity], number: int, boot: str) -> None:
    """TERM and the like wake stopped processes too, so that they can act on it."""
    for identity in processes:
        signal_process(identity, number, boot)
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGCONT):
            signal_process(identity, signal.SIGCONT, boot)


def resident_bytes(processes: list[ProcessIdentity]) -> int:
    """Sum of resident memory."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for identity in processes:
        try:
            with open(f"/proc/{identity.pid}/statm", "rb") as file:
                total += int(file.read().split()[1]) * page
        except (OSError, IndexError):
            continue
    return total
