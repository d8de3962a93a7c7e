"""Gives up rights for good, and enters namespaces: the few system calls that the standard library lacks.

Runs in a forked child between fork and exec. Never gains a right, and never returns with less given up than
its name says: what the kernel refuses is raised.
"""

import ctypes
import errno
import fcntl
import os

from courtier.adapters.process.credentials import become
from courtier.adapters.process.leader import prctl
from courtier.engine.ports import Owner

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
# ioctl_ns(2): the user namespace that owns a namespace.
NS_GET_USERNS = 0xB701
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
# capget(2): version 3 has two words for each set.
_CAPABILITY_VERSION = 0x20080522
_LIBC = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def setns(descriptor: int, kind: int) -> None:
    """Joins a namespace; of a pid namespace only later children are members. Raises OSError."""
    _check(_LIBC.setns(descriptor, kind), "setns")


def unshare(kinds: int) -> None:
    """Raises OSError."""
    _check(_LIBC.unshare(kinds), "unshare")


def owner_of(namespace: int) -> int:
    """A descriptor of the user namespace that owns a namespace. Raises OSError (EPERM: it is above our own)."""
    descriptor: int = fcntl.ioctl(namespace, NS_GET_USERNS)
    os.set_inheritable(descriptor, False)
    return descriptor


def _empty_bounding_set() -> None:
    """Without CAP_SETPCAP it stays as it is: there is then nothing to gain from it under no_new_privs."""
    capability = 0
    while True:
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EPERM):
                return
            raise
        capability += 1


def clear_capabilities() -> None:
    """Empties the permitted, effective and inheritable sets. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _check(_LIBC.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def drop_privileges(user: Owner | None) -> None:
    """Becomes the user (None: stays who it is) with no capability in any set and none to be had by an exec.

    Clears the parent-death signal, as every change of credentials does. Raises OSError.
    """
    _check(_LIBC.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "ambient capabilities")
    _empty_bounding_set()
    if user is not None:
        become(user)
    clear_capabilities()
    prctl(PR_SET_NO_NEW_PRIVS, 1)
