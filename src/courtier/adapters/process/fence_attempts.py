"""What a job would try to reach a device that is not its own. Runs inside a fence and says what worked.

Everything here must fail; each hole is a sentence that names it. Never writes to what it manages to open, and
removes what it manages to make.
"""

import contextlib
import ctypes
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from courtier.adapters.process.identity import stat_fields
from courtier.adapters.process.privileges import CLONE_NEWNS, CLONE_NEWUSER, unshare

# What bubblewrap's --dev gives to everybody.
_PLAIN_NODES = ("null", "zero", "full", "random", "urandom", "tty", "console")
COMMON_NODES = frozenset((*_PLAIN_NODES, "fd", "stdin", "stdout", "stderr", "core", "pts", "ptmx", "shm"))
MS_REMOUNT, MS_BIND, MS_REC, MNT_DETACH = 32, 4096, 16384, 2
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
SCRATCH = "/dev/shm"
MAKE_IN = ("/dev", SCRATCH, "/tmp", "/var/tmp")
MOUNTED = ("/dev", SCRATCH, "/dev/pts", "/proc/sys", "/proc", "/sys", "/")
# A driver is unbound, a GPU hidden or a program of root's named by writing to one of these; opening changes nothing.
SWITCHES = (
    "/sys/bus/pci/rescan",
    "/sys/bus/pci/drivers_probe",
    "/sys/kernel/uevent_helper",
    "/sys/kernel/mm/ksm/run",
    "/sys/power/state",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity",
    "/proc/driver/nvidia/suspend",
)
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Target:
    """own: nodes that must open. foreign: nodes that must not be there. copies: nodes elsewhere that must not open.
    device: number of a foreign device. canary: (pid, start_ticks) of a process outside, of the same user, that has
    the foreign device open."""

    own: tuple[str, ...]
    foreign: tuple[str, ...]
    copies: tuple[str, ...]
    device: int
    canary: tuple[int, int]


def attempts(target: Target) -> Iterator[str]:
    """All holes that were found."""
    yield from _nodes(target)
    yield from _rights()
    yield from _makes(target, "")
    yield from _mounts(target, "")
    yield from _processes(target)
    yield from _switches()
    yield from _descriptors()
    yield from _in_child(lambda: _nested(target))
    yield from _in_child(_becomes)


def _worked(call: Callable[[], object]) -> bool:
    try:
        call()
    except OSError:
        return False
    return True


def _opens(path: str, flags: int = os.O_RDWR) -> bool:
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _absent(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _nodes(target: Target) -> Iterator[str]:
    yield from (f"its own node {path} does not open" for path in target.own if not _opens(path))
    yield from (f"the foreign node {path} is there" for path in target.foreign if not _absent(path))
    yield from (f"a copy of a foreign node opens: {path}" for path in target.copies if _opens(path))
    known = {path.split("/")[2] for path in target.own} | COMMON_NODES
    yield from (f"/dev/{name} is there" for name in sorted(set(os.listdir("/dev")) - known))
    if not _opens(f"{SCRATCH}/courtier-probe", os.O_RDWR | os.O_CREAT):
        yield f"{SCRATCH} cannot be written to"
    with contextlib.suppress(OSError):
        os.unlink(f"{SCRATCH}/courtier-probe")


def missing_drops(status: str) -> list[str]:
    """Capabilities and new rights that a process with this /proc/PID/status has."""
    held = []
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name in ("CapInh", "CapPrm", "CapEff", "CapAmb") and int(value, 16):
            held.append(f"capabilities are kept: {name} {value.strip()}")
        if name == "NoNewPrivs" and int(value) != 1:
            held.append("new privileges are possible")
    return held


def _rights() -> Iterator[str]:
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        yield from missing_drops(file.read())
    if _worked(lambda: os.chroot("/")):
        yield "chroot works"


def _makes(target: Target, where: str) -> Iterator[str]:
    for folder in MAKE_IN:
        path = f"{folder}/courtier-probe-{os.getpid()}"
        if _worked(lambda path=path: os.mknod(path, 0o600 | stat.S_IFCHR, target.device)):  # type: ignore[misc]
            os.unlink(path)
            yield f"{where}mknod of a foreign device works in {folder}"


def _mount(source: str, place: str, kind: str, flags: int) -> bool:
    return bool(_LIBC.mount(source.encode(), place.encode(), kind.encode(), flags, None) == 0)


def _unmount(place: str) -> bool:
    return bool(_LIBC.umount2(place.encode(), MNT_DETACH) == 0)


def _mounts(target: Target, where: str) -> Iterator[str]:
    for kind in ("devtmpfs", *(() if where else ("tmpfs", "proc", "sysfs"))):
        if _mount(kind, SCRATCH, kind, 0):
            _unmount(SCRATCH)
            yield f"{where}a mount of {kind} works"
    if _mount("", "/", "", MS_REMOUNT | MS_BIND):
        yield f"{where}a remount without nodev works"
    if not where and _mount("/", SCRATCH, "", MS_BIND):
        _unmount(SCRATCH)
        yield "a bind mount works"
    # Last: what is unmounted does not come back.
    yield from (f"{where}umount of {place} works" for place in (*target.own, *MOUNTED) if _unmount(place))


def _proc_mounts() -> list[str]:
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
        rows = (line.split() for line in file)
        points = {row[1] for row in rows if row[2] == "proc"}
    return sorted(point for point in points if os.path.isdir(f"{point}/self"))


def _processes(target: Target) -> Iterator[str]:
    for point in _proc_mounts():
        yield from _visible(point, target)
    canary, _ = target.canary
    if str(canary) in os.listdir("/proc"):
        return
    try:
        os.kill(canary, 0)
        yield "a process outside can be signalled"
    except ProcessLookupError:
        pass
    except PermissionError:
        yield "a process outside is known by its pid"
    if _LIBC.ptrace(PTRACE_SEIZE, canary, None, None) == 0:
        yield "a process outside can be traced"


def _visible(point: str, target: Target) -> Iterator[str]:
    """Looks at every process that a procfs shows: who it is, its root, its descriptors."""
    for name in os.listdir(point):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        fields = stat_fields(int(name)) if point == "/proc" else _fields(f"{point}/{name}/stat")
        if fields is not None and int(fields[19]) == target.canary[1] and int(name) == target.canary[0]:
            yield f"processes outside are visible in {point}"
            if _LIBC.ptrace(PTRACE_SEIZE, int(name), None, None) == 0:
                _LIBC.ptrace(PTRACE_DETACH, int(name), None, None)
                yield "a process outside can be traced"
        yield from (
            f"the foreign node {path} is reached through {point}/PID/root"
            for path in target.foreign
            if _worked(lambda path=path, name=name: os.stat(f"{point}/{name}/root{path}"))  # type: ignore[misc]
        )
        with contextlib.suppress(OSError):
            for number in os.listdir(f"{point}/{name}/fd"):
                if _is_device(f"{point}/{name}/fd/{number}", target.device):
                    yield f"a foreign device is reached through {point}/PID/fd"


def _fields(path: str) -> list[bytes] | None:
    try:
        with open(path, "rb") as file:
            return file.read().rpartition(b") ")[2].split()
    except OSError:
        return None


def _is_device(path: str, device: int) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == device


def _switches() -> Iterator[str]:
    for path in SWITCHES:
        if _opens(path, os.O_WRONLY):
            yield f"{path} can be written to"
    for place in ("/sys", "/proc/sys"):
        if not os.statvfs(place).f_flag & os.ST_RDONLY:
            yield f"{place} is writable"


def _descriptors() -> Iterator[str]:
    """A directory or device that came along from outside is a way out."""
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            mode = os.stat(f"/proc/self/fd/{number}").st_mode
            target = os.readlink(f"/proc/self/fd/{number}")
            if int(number) > 2 and (stat.S_ISDIR(mode) or stat.S_ISCHR(mode)) and not target.startswith("/proc/"):
                yield f"a descriptor from outside is open: {target}"


def _becomes() -> Iterator[str]:
    other = 0 if os.getuid() else 1
    if _worked(lambda: os.setresuid(other, other, other)):
        yield f"setuid to {other} works"
    if _worked(lambda: os.setgroups([0])):
        yield "setgroups works"


def _nested(target: Target) -> Iterator[str]:
    """All of it again with the rights of a user namespace of its own, where the kernel lets it have one."""
    where = "in a nested user namespace "
    try:
        unshare(CLONE_NEWUSER | CLONE_NEWNS)
    except OSError:
        return
    yield from _makes(target, where)
    if _mount("tmpfs", SCRATCH, "tmpfs", 0):
        yield from _makes(target, where)
        _unmount(SCRATCH)
    if _mount("proc", SCRATCH, "proc", 0):
        yield from (where + hole for hole in _visible(SCRATCH, target))
        _unmount(SCRATCH)
    for flags in (MS_BIND, MS_BIND | MS_REC):
        if _mount("/", SCRATCH, "", flags):
            _unmount(f"{SCRATCH}/dev")
            if not all(_absent(SCRATCH + path) for path in target.foreign):
                yield f"{where}a bind of / shows the foreign node"
            _unmount(SCRATCH)
    yield from _mounts(target, where)
    yield from (f"{where}the foreign node {path} opens" for path in target.foreign if _opens(path))
    yield from (f"{where}a copy opens: {path}" for path in target.copies if _opens(path))


def _in_child(find: Callable[[], Iterator[str]]) -> list[str]:
    """What a child found that may spoil its own namespaces or identity."""
    read, write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            for hole in find():
                os.write(write, hole.encode() + b"\n")
        except OSError as error:
            os.write(write, f"the attempts broke off: {error}\n".encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8", errors="replace") as file:
        holes = file.read().splitlines()
    os.waitpid(pid, 0)
    return holes
