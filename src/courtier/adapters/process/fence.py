"""A fence: mount, pid and ipc namespaces in which a job has its own device nodes and no others.

Bubblewrap makes it, with an empty environment and /bin/cat as its only command; the job's own process then
enters it by setns (fence_entry.py), so that no program stands between the supervisor and the job: environment,
exit status and signals are exact. Must never give a program of the user's to bubblewrap, and never say that a
fence stands before its command has answered.

    supervisor -- bwrap (monitor) -- bwrap (pid 1 inside: init, reaps) -- cat (holder)
              \\-- the job's own process (inside, parent outside)        \\-- processes that the job left behind

All three fence processes block every signal but KILL and STOP: a TERM to the whole tree passes them by. When
the supervisor dies the monitor dies (parent-death signal), with it the init, with it everything inside.
"""

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fcntl import F_DUPFD_CLOEXEC, fcntl

from courtier.adapters.process.privileges import owner_of

# Places where a bubblewrap that root may run can lie; the PATH of whoever starts the daemon does not count.
BWRAP_FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin")
HOLDER = "/bin/cat"
# Needed by every job with a GPU. modeset and uvm-tools are not made on every machine.
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
OPTIONAL_NODES = (
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
    # Fabric for jobs of several GPUs: RDMA verbs and GPUDirect copies. They open no GPU by themselves.
    "/dev/infiniband",
    "/dev/gdrdrv",
)
BUILD_SECONDS_MAX = 5.0
_INFO = 3


class FenceError(Exception):
    """The fence could not be set up: the start is refused, the job has not run."""


@dataclass(frozen=True, slots=True)
class Node:
    """A device node of the job: `source` on the machine, `path` inside. A required one that is missing is an error."""

    source: str
    path: str
    required: bool = True


@dataclass(frozen=True, slots=True)
class FenceSpec:
    """nodes: the job's devices and nothing else. terminal: the job's pty (/dev/pts/N), seen inside as /dev/console.
    bwrap: its path, as `find_bwrap` gives it."""

    bwrap: str
    nodes: tuple[Node, ...] = ()
    terminal: str | None = None


def find_bwrap(folders: Iterable[str] = BWRAP_FOLDERS) -> str | None:
    for folder in folders:
        if os.access(f"{folder}/bwrap", os.X_OK):
            return f"{folder}/bwrap"
    return None


def gpu_nodes(minors: Iterable[int], capabilities: Iterable[int] = (), *, simulated: bool = False) -> tuple[Node, ...]:
    """Nodes of a job that holds the GPUs of these minors; none for a job without.

    capabilities: numbers N of /dev/nvidia-capsN's nodes of the job's MIG partitions (GPU and compute instance).
    simulated: a node stands for GPU N only where somebody made one.
    """
    own = [Node(f"/dev/nvidia{minor}", f"/dev/nvidia{minor}", not simulated) for minor in minors]
    if not own:
        return ()
    caps = [Node(path, path) for path in (f"/dev/nvidia-caps/nvidia-cap{number}" for number in capabilities)]
    control = [Node(path, path, not simulated) for path in CONTROL_NODES]
    return (*own, *caps, *control, *(Node(path, path, False) for path in OPTIONAL_NODES))


def other_proc_mounts() -> list[str]:
    """Mount points of procfs besides /proc (a chroot has one): through them outside processes could be reached."""
    found = []
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            left, _, right = line.partition(b" - ")
            if not right.startswith(b"proc "):
                continue
            fields = left.split()
            point = fields[4].decode("unicode_escape").encode("latin-1")
            major, _, minor = fields[2].partition(b":")
            if point == b"/proc" or point.startswith(b"/proc/"):
                continue
            with contextlib.suppress(OSError):
                # One that lies hidden below another mount is not reachable, and must not be made so.
                if os.stat(point).st_dev == os.makedev(int(major), int(minor)):
                    found.append(os.fsdecode(point))
    return found


def fence_argv(spec: FenceSpec) -> list[str]:
    """The bubblewrap command that makes the fence. Tried against 0.8.0.

    --bind makes every mount nosuid and nodev, so that copies of device nodes elsewhere do not open. /dev/shm is
    a tmpfs of the job's own, as large as the machine's usual one (half the memory): data loaders have their
    room, what a job leaves there goes with it, and no other job reads it. /sys and /proc/sys are read-only also
    for root, who owns their files: unbinding a driver, or core_pattern, needs no capability. (Run by root,
    0.8.0 leaves /proc/sys writable.)
    """
    argv = [spec.bwrap]
    if os.geteuid() != 0:
        argv += ["--unshare-user"]
    argv += ["--unshare-pid", "--unshare-ipc", "--die-with-parent", "--cap-drop", "ALL"]
    argv += ["--bind", "/", "/", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"]
    for point in other_proc_mounts():
        argv += ["--tmpfs", point]
    argv += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--ro-bind", "/sys", "/sys"]
    # The driver's own switches (suspend, power) are root's to write.
    if os.path.isdir("/proc/driver"):
        argv += ["--ro-bind", "/proc/driver", "/proc/driver"]
    for node in spec.nodes:
        argv += ["--dev-bind" if node.required else "--dev-bind-try", node.source, node.path]
    if spec.terminal is not None:
        argv += ["--dev-bind", spec.terminal, "/dev/console"]
    return [*argv, "--chdir", "/", "--info-fd", str(_INFO), HOLDER]


@dataclass(slots=True)
class Fence:
    """A fence that stands. monitor is a child of this process; init and holder live inside; pids are the machine's.

    user_outer owns the other namespaces, user_inner is the job's (None: no user namespace)."""

    monitor: int
    init: int
    holder: int
    pid: int
    ipc: int
    mount: int
    user_outer: int | None
    user_inner: int | None
    keep: int
    ended: bool = False

    @property
    def pids(self) -> frozenset[int]:
        """Processes of the fence, not of the job: no listing, measurement or signal but KILL is for them."""
        return frozenset((self.monitor, self.init, self.holder))

    def empty(self) -> bool:
        """Whether nothing of the job is inside, its own process not counted (its parent is outside).

        What a job leaves behind is a child of the init, or below one. The init's first child is the holder and
        new ones come last, so a list that ends after the holder was complete at that moment.
        """
        try:
            return children(self.init) in ([self.holder], [])
        except OSError:
            return True

    def end(self) -> None:
        """Kills everything inside at once. The caller reaps the monitor, and the init as a subreaper."""
        if self.ended:
            return
        self.ended = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.monitor, signal.SIGKILL)
        for descriptor in (self.pid, self.ipc, self.mount, self.user_outer, self.user_inner, self.keep):
            if descriptor is not None:
                os.close(descriptor)


def children(pid: int) -> list[int]:
    """Raises OSError when there is no such process, or the kernel does not tell (no CONFIG_PROC_CHILDREN)."""
    with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
        return [int(word) for word in file.read().split()]


class FenceStart:
    """A bubblewrap at work: begun early, it makes the fence while its caller does other things.

    The caller must be a subreaper, and calls `stands` or `discard` once. Raises FenceError.
    """

    def __init__(self, spec: FenceSpec, *, argv_of: Callable[[FenceSpec], list[str]] = fence_argv) -> None:
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(4)]
        (keep_read, self._keep), (self._answer, answer), (self._error, error), (self._info, info) = pipes
        os.write(self._keep, b"!")
        theirs = [keep_read, answer, error, info]
        try:
            self._monitor = _spawn(argv_of(spec), theirs)
        except OSError as problem:
            self._close(keep=False)
            raise FenceError(f"bubblewrap: {problem}") from problem
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def stands(self, *, seconds_max: float = BUILD_SECONDS_MAX) -> Fence:
        """Waits until the fence stands. Raises FenceError with the reason; bubblewrap is then killed and reaped."""
        try:
            _await_answer(self._answer, self._error, time.monotonic() + seconds_max)
            init = int(json.loads(os.read(self._info, 4096))["child-pid"])
            fence = _opened(self._monitor, init, self._keep)
        except (OSError, ValueError, KeyError) as problem:
            self.discard()
            raise FenceError(f"bubblewrap: {problem}") from problem
        self._close(keep=True)
        return fence

    def discard(self) -> None:
        """Kills what was begun and reaps the monitor."""
        with contextlib.suppress(OSError):
            os.kill(self._monitor, signal.SIGKILL)
            os.waitpid(self._monitor, 0)
        self._close(keep=False)

    def _close(self, *, keep: bool) -> None:
        for descriptor in (self._answer, self._error, self._info, *(() if keep else (self._keep,))):
            os.close(descriptor)


def _spawn(argv: list[str], ends: list[int]) -> int:
    """With an empty environment, and every signal blocked that can be: its children inherit that."""
    high = [fcntl(descriptor, F_DUPFD_CLOEXEC, 10) for descriptor in ends]
    try:
        return os.posix_spawn(
            argv[0],
            argv,
            {},
            file_actions=[(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(high)],
            setsigmask=signal.valid_signals(),
            setpgroup=0,
        )
    finally:
        for descriptor in high:
            os.close(descriptor)


def _await_answer(answer: int, error: int, deadline: float) -> None:
    ready, _, _ = select.select([answer], [], [], max(0.0, deadline - time.monotonic()))
    if not ready:
        raise TimeoutError("it did not answer in time")
    if not os.read(answer, 1):
        text = os.read(error, 4096).decode("utf-8", "replace").strip().removeprefix("bwrap: ")
        raise ChildProcessError(text or "it ended before it was ready")


def _opened(monitor: int, init: int, keep: int) -> Fence:
    opened: list[int] = []
    try:
        opened += (
            os.open(f"/proc/{init}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("pid", "ipc", "mnt", "user")
        )
        pid, ipc, mount, inner = opened
        outer = None
        if os.fstat(inner).st_ino == os.stat("/proc/self/ns/user").st_ino:
            os.close(opened.pop())
            inner = -1
        else:
            outer = owner_of(mount)
            opened.append(outer)
        holder = next(iter(children(init)), init)
        return Fence(monitor, init, holder, pid, ipc, mount, outer, inner if inner >= 0 else None, keep)
    except OSError:
        for descriptor in opened:
            os.close(descriptor)
        raise
