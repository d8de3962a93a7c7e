"""The job's own process: from the fork to the exec. Runs in the child; nothing here returns there.

Dies with its supervisor (PDEATHSIG). Waits for a byte before it becomes the command, so that its start is
on disk before anything of the user's runs.
"""

import ctypes
import errno
import fcntl
import json
import os
import signal
import termios
from collections.abc import Callable
from dataclasses import dataclass

from courtier.adapters.process.credentials import become
from courtier.engine.ports import Owner

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)
NOT_FOUND_CODE, NOT_EXECUTABLE_CODE = 127, 126


def prctl(option: int, value: int) -> None:
    """Raises OSError when the kernel refuses."""
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@dataclass(frozen=True, slots=True)
class Command:
    """What the child becomes. terminal: stdin is a terminal to be controlled. owner: whom it runs as."""

    argv: tuple[bytes, ...]
    environment: dict[bytes, bytes]
    directory: bytes
    umask: int
    terminal: bool
    owner: Owner | None = None


@dataclass(slots=True)
class Child:
    """The supervisor's handles: `go` releases the child, `failure` reads why it could not exec (empty: it did)."""

    pid: int
    go: int
    failure: int


def fork_leader(command: Command, stdin: int, stdout: int, stderr: int, join: Callable[[int], None]) -> Child:
    """Forks the waiting child; `join` moves it into its cgroups before it is released."""
    wait_read, wait_write = os.pipe2(os.O_CLOEXEC)
    fail_read, fail_write = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            become_command(
                command, (stdin, stdout, stderr), wait_read, fail_write, lambda: _bind(parent, command.owner)
            )
        finally:
            os._exit(NOT_FOUND_CODE)
    os.close(wait_read)
    os.close(fail_write)
    join(pid)
    return Child(pid, wait_write, fail_read)


def _bind(parent: int, owner: Owner | None) -> None:
    if owner is not None:
        become(owner)
    # A change of user clears it, so it comes last.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(NOT_FOUND_CODE)


def become_command(
    command: Command, stdio: tuple[int, int, int], wait: int, failure: int, enter: Callable[[], None]
) -> None:
    """Never returns. `enter` is called once, while other descriptors are still open and before any path of the
    user's is touched: it ties the child to its parent's life, enters namespaces and gives up rights."""
    prctl(PR_SET_CHILD_SUBREAPER, 0)
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # Both pipes move out of the way of 0, 1, 2.
    wait, failure = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (wait, failure))
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in stdio]
    for number, descriptor in enumerate(high):
        os.dup2(descriptor, number)
    if command.terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    enter()
    close_others(keep={0, 1, 2, wait, failure})
    if not os.read(wait, 1):
        os._exit(NOT_FOUND_CODE)
    what = command.directory
    try:
        os.umask(command.umask)
        os.chdir(command.directory)
        what = command.argv[0]
        _exec(command)
    except OSError as error:
        code = NOT_FOUND_CODE if error.errno == errno.ENOENT and what is command.argv[0] else NOT_EXECUTABLE_CODE
        text = f"{what.decode('utf-8', 'replace')}: {os.strerror(error.errno or 0)}"
        os.write(failure, json.dumps({"exit_code": code, "error": text[:2000]}).encode())
        os._exit(code)


def close_others(keep: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                continue


def _exec(command: Command) -> None:
    """Tries the places of the job's own PATH; a script without #! goes to the shell, as shells do. Raises OSError."""
    name = command.argv[0]
    if b"/" in name:
        candidates = [name]
    else:
        path = command.environment.get(b"PATH", b"/usr/bin:/bin")
        candidates = [os.path.join(folder or b".", name) for folder in path.split(b":")]
    worst = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for candidate in candidates:
        try:
            os.execve(candidate, command.argv, command.environment)
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                os.execve(b"/bin/sh", (b"/bin/sh", candidate, *command.argv[1:]), command.environment)
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                worst = error
    raise worst
