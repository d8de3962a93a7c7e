"""Whom a job runs as, under a broker of root's: taken on for good by the job, for a moment by its supervisor.

A path of the user's is touched only as the user. Must never leave a process with some of the user's rights and
some of root's.
"""

import contextlib
import os
from collections.abc import Iterator

from courtier.engine.ports import Owner


def become(owner: Owner) -> None:
    """The calling process is the user's from now on, and can not go back. Raises OSError."""
    os.setgroups(owner.groups)
    os.setresgid(owner.gid, owner.gid, owner.gid)
    os.setresuid(owner.uid, owner.uid, owner.uid)


@contextlib.contextmanager
def acting_as(owner: Owner | None) -> Iterator[None]:
    """File access within has the user's rights (None: the caller's own); the caller can still not be signalled by them.

    Only the effective ids change: the kernel lets a user signal or trace a process by its real and saved ids.
    """
    if owner is None:
        yield
        return
    groups, gid = os.getgroups(), os.getegid()
    os.setgroups(owner.groups)
    os.setegid(owner.gid)
    os.seteuid(owner.uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)
