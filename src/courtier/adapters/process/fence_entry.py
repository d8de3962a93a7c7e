"""Forks a process that lives inside a fence, without rights, as a direct child of the supervisor.

A process cannot move to another pid namespace, only have children there: a go-between joins, forks and ends,
and its child comes to the supervisor, which is a subreaper. Must never run a program before the rights are gone.
"""

import contextlib
import os
import signal
from collections.abc import Callable

from courtier.adapters.process.fence import Fence, FenceError
from courtier.adapters.process.leader import (
    NOT_FOUND_CODE,
    PR_SET_PDEATHSIG,
    Child,
    Command,
    become_command,
    prctl,
)
from courtier.adapters.process.privileges import (
    CLONE_NEWIPC,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    drop_privileges,
    setns,
)
from courtier.engine.ports import Owner

Confine = Callable[[Owner | None], None]
_READY = b"+"


def _same(descriptor: int, other: int) -> bool:
    return os.fstat(descriptor).st_ino == os.fstat(other).st_ino


def _enter(fence: Fence, user: Owner | None, confine: Confine) -> None:
    setns(fence.ipc, CLONE_NEWIPC)
    setns(fence.mount, CLONE_NEWNS)
    if fence.user_inner is not None and fence.user_outer is not None and not _same(fence.user_inner, fence.user_outer):
        setns(fence.user_inner, CLONE_NEWUSER)
    confine(user)


def fork_inside(
    fence: Fence,
    user: Owner | None,
    run: Callable[[Callable[[], None]], None],
    *,
    confine: Confine = drop_privileges,
) -> int:
    """The pid, in this process's namespace, of a child that called `run`, which must call its argument to enter.

    Returns when the child has entered and has no rights left; `run` then goes on in the child. What needs the
    place outside (a descriptor, a controlling terminal) `run` does before it enters. Raises FenceError.
    """
    report_read, report = os.pipe2(os.O_CLOEXEC)
    adopted, adopt = os.pipe2(os.O_CLOEXEC)

    def enter() -> None:
        answer = _READY
        try:
            _enter(fence, user, confine)
        except OSError as error:
            answer = str(error).encode()[:1000]
        # Ends when the supervisor has reaped the go-between. Asked for before, the signal would come from its death;
        # asked for before the change of credentials, it would be forgotten.
        os.read(adopted, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.write(report, answer)
        if answer != _READY:
            os._exit(NOT_FOUND_CODE)
        # A supervisor that died in between takes the fence, and with it this child.
        os.close(report)
        os.close(adopted)

    between = os.fork()
    if between == 0:
        try:
            os.close(adopt)
            _go_between(fence, report, lambda: run(enter))
        finally:
            os._exit(NOT_FOUND_CODE)
    os.close(report)
    os.close(adopted)
    try:
        os.waitpid(between, 0)
        os.close(adopt)
        answer = _read_all(report_read)
    finally:
        os.close(report_read)
    number, _, text = answer.partition(b"\n")
    if text == _READY:
        return int(number)
    if number.isdigit():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(int(number), 0)
    reason = text if number.isdigit() else number
    raise FenceError(f"the fence could not be entered: {reason.decode('utf-8', 'replace') or 'the child died'}")


def _go_between(fence: Fence, report: int, run: Callable[[], None]) -> None:
    try:
        if fence.user_outer is not None:
            setns(fence.user_outer, CLONE_NEWUSER)
        setns(fence.pid, CLONE_NEWPID)
        pid = os.fork()
    except OSError as error:
        os.write(report, str(error).encode()[:1000])
        os._exit(NOT_FOUND_CODE)
    if pid == 0:
        try:
            run()
        finally:
            os._exit(NOT_FOUND_CODE)
    os.write(report, b"%d\n" % pid)
    os._exit(0)


def _read_all(descriptor: int) -> bytes:
    content = b""
    while piece := os.read(descriptor, 4096):
        content += piece
    return content


def fork_fenced_leader(
    command: Command,
    stdin: int,
    stdout: int,
    stderr: int,
    join: Callable[[int], None],
    fence: Fence,
    user: Owner | None,
    *,
    confine: Confine = drop_privileges,
) -> Child:
    """`leader.fork_leader` inside a fence, as `user` (None: as this process's). Raises FenceError: nothing has run."""
    wait_read, wait_write = os.pipe2(os.O_CLOEXEC)
    fail_read, fail_write = os.pipe2(os.O_CLOEXEC)

    def run(enter: Callable[[], None]) -> None:
        become_command(command, (stdin, stdout, stderr), wait_read, fail_write, enter)

    try:
        pid = fork_inside(fence, user, run, confine=confine)
    except FenceError:
        os.close(wait_write)
        os.close(fail_read)
        raise
    finally:
        os.close(wait_read)
        os.close(fail_write)
    join(pid)
    return Child(pid, wait_write, fail_read)
