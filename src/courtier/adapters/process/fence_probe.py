"""Tries a fence from the inside before anyone relies on it: the level that jobs get is what was seen to hold.

One hole, or anything that cannot be tried, means level "env" with a reason. Leaves no node, mount or process
behind, changes nothing of a device (real GPU nodes are looked for, never opened), and never outlasts its deadline.
"""

import contextlib
import glob
import json
import os
import select
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

from courtier.adapters.process.credentials import become
from courtier.adapters.process.fence import Fence, FenceError, FenceSpec, FenceStart, Node, fence_argv, find_bwrap
from courtier.adapters.process.fence_attempts import Target, attempts, missing_drops
from courtier.adapters.process.fence_entry import Confine, fork_fenced_leader, fork_inside
from courtier.adapters.process.identity import stat_fields
from courtier.adapters.process.leader import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    Command,
    close_others,
    prctl,
)
from courtier.adapters.process.privileges import drop_privileges
from courtier.engine.ports import Owner

PROBE_SECONDS_MAX = 1.5
# Shorter than the whole, so that a bubblewrap that hangs is reaped by who started it.
BUILD_SECONDS_MAX = 1.0
# The user of no rights that every system has.
NOBODY = Owner(65534, 65534, ())
OWN = "/dev/courtier-probe-own"
# Stand-ins of a job's own and of a foreign device: zero and full, which harm nobody.
OWN_SOURCE, FOREIGN_SOURCE = "/dev/zero", "/dev/full"
STAND_IN_PREFIX = "courtier-probe-"
PR_SET_DUMPABLE = 4
HOLES_NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class FenceVerdict:
    """level: "fence" or "env". reason: why not "fence"; None where it is."""

    level: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class _StandIns:
    """folders: to be removed afterwards."""

    foreign: tuple[str, ...]
    copies: tuple[str, ...]
    folders: tuple[str, ...]


def probe_fence(
    *,
    argv_of: Callable[[FenceSpec], list[str]] = fence_argv,
    confine: Confine = drop_privileges,
    seconds_max: float = PROBE_SECONDS_MAX,
) -> FenceVerdict:
    """Builds fences as jobs get them (as root: for root and for an ordinary user) and tries them.

    Call it from a process with one thread: it forks. argv_of and confine are what is tried; a test gives weak ones.
    """
    bwrap = find_bwrap()
    if bwrap is None:
        return FenceVerdict("env", "bubblewrap (bwrap) is not installed")
    stand_ins = _make_stand_ins()
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
        if pid == 0:
            try:
                _probe_to(write, FenceSpec(bwrap, (Node(OWN_SOURCE, OWN),)), stand_ins, argv_of, confine)
            finally:
                os._exit(1)
        os.close(write)
        return _verdict(pid, read, time.monotonic() + seconds_max, seconds_max)
    finally:
        os.close(read)
        for folder in stand_ins.folders:
            shutil.rmtree(folder, ignore_errors=True)


def _make_stand_ins() -> _StandIns:
    """Foreign nodes in /dev and elsewhere: real GPUs' and, where the kernel lets us, one of our own making."""
    real = [*glob.glob("/dev/nvidia[0-9]*"), *glob.glob("/dev/nvidiactl"), *glob.glob("/dev/nvidia-caps/*")]
    made: list[str] = []
    folders: list[str] = []
    for parent in ("/dev", tempfile.gettempdir()):
        with contextlib.suppress(OSError):
            folder = tempfile.mkdtemp(prefix=STAND_IN_PREFIX, dir=parent)
            folders.append(folder)
            os.chmod(folder, 0o755)
            os.mknod(f"{folder}/foreign", 0o600 | stat.S_IFCHR, os.stat(FOREIGN_SOURCE).st_rdev)
            os.chmod(f"{folder}/foreign", 0o666)
            made.append(f"{folder}/foreign")
    foreign = [path for path in made if path.startswith("/dev/")]
    copies = [path for path in made if not path.startswith("/dev/")]
    return _StandIns((*real, *foreign), tuple(copies), tuple(folders))


def _verdict(pid: int, read: int, deadline: float, seconds_max: float) -> FenceVerdict:
    content = b""
    while True:
        ready, _, _ = select.select([read], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        piece = os.read(read, 1 << 16)
        if not piece:
            break
        content += piece
    # Done or not: with it go its fences and everything inside.
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if not ready:
        return FenceVerdict("env", f"the probe of the fence did not end within {seconds_max:g} s")
    try:
        holes: list[str] = json.loads(content)
    except ValueError:
        return FenceVerdict("env", "the probe of the fence broke off")
    if not holes:
        return FenceVerdict("fence", None)
    more = f"; {len(holes) - HOLES_NAMED_MAX} more" if len(holes) > HOLES_NAMED_MAX else ""
    return FenceVerdict("env", "; ".join(holes[:HOLES_NAMED_MAX]) + more)


def _probe_to(
    write: int,
    spec: FenceSpec,
    stand_ins: _StandIns,
    argv_of: Callable[[FenceSpec], list[str]],
    confine: Confine,
) -> None:
    """Runs in a child of its own. One JSON list of holes; on an error a list with that."""
    holes: list[str] = []
    try:
        os.setsid()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        subjects = [("as root", None), ("as a user", NOBODY)] if os.geteuid() == 0 else [("as this user", None)]
        for name, user in subjects:
            fence = FenceStart(spec, argv_of=argv_of).stands(seconds_max=BUILD_SECONDS_MAX)
            try:
                found = _tried(fence, user, stand_ins, confine)
                holes += [f"{name}: {hole}" for hole in dict.fromkeys(found)]
            finally:
                fence.end()
                _reap_all()
    except (FenceError, OSError) as error:
        holes.append(str(error))
    os.write(write, json.dumps(holes).encode())
    os._exit(0)


def _reap_all() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _tried(fence: Fence, user: Owner | None, stand_ins: _StandIns, confine: Confine) -> list[str]:
    canary = _fork_canary(user)
    try:
        found = _attempts_inside(fence, user, stand_ins, confine, canary)
    finally:
        os.kill(canary, signal.SIGKILL)
    return found + _after_exec(fence, user, confine)


def _attempts_inside(
    fence: Fence, user: Owner | None, stand_ins: _StandIns, confine: Confine, canary: int
) -> list[str]:
    fields = stat_fields(canary)
    ticks = int(fields[19]) if fields is not None else 0
    device = os.stat(FOREIGN_SOURCE).st_rdev
    target = Target((OWN,), stand_ins.foreign, stand_ins.copies, device, (canary, ticks))
    read, write = os.pipe2(os.O_CLOEXEC)

    def run(enter: Callable[[], None]) -> None:
        os.setsid()
        enter()
        close_others(keep={0, 1, 2, write})
        for hole in attempts(target):
            os.write(write, hole.encode() + b"\n")
        os.write(write, b"\n")
        os._exit(0)

    fork_inside(fence, user, run, confine=confine)
    os.close(write)
    with open(read, encoding="utf-8", errors="replace") as file:
        lines = file.read().split("\n")
    holes = [line for line in lines if line]
    if lines[-2:] != ["", ""]:
        holes.append("the attempts broke off")
    return holes


def _fork_canary(user: Owner | None) -> int:
    """A process outside, of the job's user, with a foreign device open: nothing inside may find it."""
    ready, said = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.open(FOREIGN_SOURCE, os.O_RDONLY | os.O_CLOEXEC)
            if user is not None:
                become(user)
            prctl(PR_SET_DUMPABLE, 1)
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.write(said, b"!")
            while True:
                signal.pause()
        finally:
            os._exit(1)
    os.close(said)
    os.read(ready, 1)
    os.close(ready)
    return pid


def _after_exec(fence: Fence, user: Owner | None, confine: Confine) -> list[str]:
    """Rights can come back with an exec (root's do): a program inside is asked."""
    read, write = os.pipe2(os.O_CLOEXEC)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    command = Command((b"/bin/cat", b"/proc/self/status"), {}, b"/", 0o022, False)
    child = fork_fenced_leader(command, null, write, null, lambda _pid: None, fence, user, confine=confine)
    os.close(write)
    # It may have died already, in a fence whose /proc is gone.
    with contextlib.suppress(BrokenPipeError):
        os.write(child.go, b"!")
    os.close(child.go)
    with open(read, encoding="utf-8", errors="replace") as file:
        status = file.read()
    if "NoNewPrivs" not in status:
        return ["no program runs in the fence"]
    return [f"after an exec {held}" for held in missing_drops(status)]
