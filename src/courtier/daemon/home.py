"""A broker's home: one folder with the whole state, one broker at a time, never on a network file system."""

import fcntl
import os
from pathlib import Path

from courtier.adapters.filesystem import refuse_network_filesystem
from courtier.engine.ports import PortError

SHIM_SRUN = """#!/bin/sh
[ -x "{python}" ] && exec "{python}" -I -m courtier.cli.srun "$@"
echo "courtier: srun can not run here: {python} is not open to this user (courtier doctor)" >&2
exit 126
"""


def prepare_home(home: Path, python: str) -> None:
    """Makes the folders and the job-side commands. Raises PortError with what to do."""
    # Root's broker serves everybody: they may pass through to the socket, their script and srun, and see nothing else.
    shared = os.geteuid() == 0
    modes = {"run": 0o711, "scripts": 0o711, "bin": 0o755} if shared else {"run": 0o700, "scripts": 0o700, "bin": 0o700}
    try:
        home.mkdir(mode=0o711 if shared else 0o700, parents=True, exist_ok=True)
        refuse_network_filesystem(home)
        home.chmod(0o711 if shared else 0o700)
        for name, mode in {**modes, "logs": 0o700}.items():
            (home / name).mkdir(mode=mode, exist_ok=True)
            (home / name).chmod(mode)
        shim = home / "bin" / "srun"
        shim.write_text(SHIM_SRUN.format(python=python))
        shim.chmod(0o755)
    except OSError as error:
        raise PortError("home_unusable", f"{home} can not hold the state: {error.strerror}") from error


def lock_home(home: Path) -> int | None:
    """The lock's descriptor, held for the life of the broker; None when another broker has it.

    flock, not a pid file: it falls with its holder, whatever kills it, and names no stranger.
    """
    descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
