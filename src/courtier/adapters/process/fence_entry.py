"""Forks a process that lives inside a fence, without rights, as a direct child of the supervisor.

A process cannot move to another pid namespace, only have children there. Root has one there and goes back; who
needs a user namespace for it sends a go-between, which joins, forks and ends: its child comes to the supervisor,
a subreaper. Must never run a program before the rights are gone.
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

    def inside() -> None:
        os.close(adopt)
        run(enter)

    def enter() -> None:
        answer = _READY
        try:
            _enter(fence, user, confine)
        except OSError as error:
            answer = str(error).encode()[:1000]
        # Ends when the supervisor is the parent. Asked for before, the signal would come from the go-between's death;
        # asked for before the change of credentials, it would be forgotten.
        os.read(adopted, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.write(report, answer)
        if answer != _READY:
            os._exit(NOT_FOUND_CODE)
        # A supervisor that died in between takes the fence, and with it this child.
        os.close(report)
        os.close(adopted)

    try:
        pid = _fork_directly(fence, inside) if fence.user_outer is None else _fork_by_go_between(fence, inside)
    except OSError as error:
        os.close(report_read)
        raise FenceError(f"the fence could not be entered: {error}") from error
    finally:
        for descriptor in (report, adopted, adopt):
            os.close(descriptor)
    with open(report_read, "rb") as file:
        answer = file.read()
    if answer == _READY:
        return pid
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    reason = answer.decode("utf-8", "replace") or "the child died"
    raise FenceError(f"the fence could not be entered: {reason}")


def _fork_directly(fence: Fence, run: Callable[[], None]) -> int:
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        setns(fence.pid, CLONE_NEWPID)
        try:
            return _fork(run)
        finally:
            setns(own, CLONE_NEWPID)
    finally:
        os.close(own)


def _fork_by_go_between(fence: Fence, run: Callable[[], None]) -> int:
    """Raises OSError with what the go-between met."""
    read, write = os.pipe2(os.O_CLOEXEC)
    assert fence.user_outer is not None
    user_outer = fence.user_outer

    def join() -> None:
        try:
            setns(user_outer, CLONE_NEWUSER)
            setns(fence.pid, CLONE_NEWPID)
            os.write(write, b"%d" % _fork(run))
        except OSError as error:
            os.write(write, str(error).encode()[:1000])
        os._exit(0)

    between = _fork(join)
    os.close(write)
    os.waitpid(between, 0)
    # One read, not all: its child holds the other end too.
    answer = os.read(read, 4096)
    os.close(read)
    if not answer.isdigit():
        raise OSError(answer.decode("utf-8", "replace") or "the go-between died")
    return int(answer)


def _fork(run: Callable[[], None]) -> int:
    """The child runs `run` and never returns."""
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(NOT_FOUND_CODE)
    return pid


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
