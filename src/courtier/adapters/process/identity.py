"""Who a process is: boot, pid and start time. Signals go through a pidfd after a check, so never to a stranger."""

import os
import signal
from functools import lru_cache

from courtier.domain.attempts import ProcessIdentity


@lru_cache(maxsize=1)
def boot_id() -> str:
    """The kernel's id of this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def stat_fields(pid: int) -> list[bytes] | None:
    """Fields of /proc/PID/stat from the state on (index 0 is field 3); None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    # The command name is in parentheses and may hold spaces and parentheses itself.
    return line[line.rindex(b")") + 2 :].split()


def identify(pid: int, boot: str) -> ProcessIdentity | None:
    """The identity of a living process; None when it is gone or a zombie."""
    fields = stat_fields(pid)
    if fields is None or fields[0] in (b"Z", b"X"):
        return None
    return ProcessIdentity(boot, pid, int(fields[19]))


def is_alive(identity: ProcessIdentity, boot: str) -> bool:
    """Whether exactly this process lives; one of another boot does not."""
    return identity.boot_id == boot and identify(identity.pid, boot) == identity


def open_pidfd(identity: ProcessIdentity, boot: str) -> int | None:
    """A pidfd of exactly this process, or None. The caller closes it."""
    if identity.boot_id != boot:
        return None
    try:
        descriptor = os.pidfd_open(identity.pid)
    except OSError:
        return None
    if identify(identity.pid, boot) != identity:
        os.close(descriptor)
        return None
    return descriptor


def signal_process(identity: ProcessIdentity, number: int, boot: str) -> bool:
    """Sends a signal to exactly this process; False when it is gone."""
    descriptor = open_pidfd(identity, boot)
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
