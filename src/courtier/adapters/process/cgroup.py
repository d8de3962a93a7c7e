"""Cgroups of a job: memory and CPU limits where this process may set them, and a sure way to kill all at once.

Version 2 where its controllers are ours to use, else version 1, else nothing: the level is said, never
guessed. Cgroups lie beside the daemon's own, so that a restart of a service does not take its jobs along.
"""

import os
from dataclasses import dataclass
from functools import lru_cache

CPU_PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Levels:
    """memory: "cgroup-v2", "cgroup-v1" or "rss-watch". cpu: "cgroup-v2", "cgroup-v1" or "none".
    The roots are folders below which a job's own may be made; None where there is none."""

    memory: str
    cpu: str
    memory_root: str | None
    cpu_root: str | None
    kill_root: str | None


def _mounts() -> list[tuple[str, str, str]]:
    """(type, mount point, options) of cgroup mounts."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            kind, _, options = right.split()[:3]
            if kind in ("cgroup", "cgroup2"):
                found.append((kind, left.split()[4], options))
    return found


def _usable(root: str) -> bool:
    """Whether a folder can be made there: asked by making one, since rights alone do not tell."""
    probe_path = f"{root}/courtier-probe-{os.getpid()}"
    try:
        os.mkdir(probe_path)
        os.rmdir(probe_path)
    except OSError:
        return False
    return True


def _enabled(root: str, controller: str) -> bool:
    try:
        with open(f"{root}/cgroup.subtree_control", encoding="ascii") as file:
            if controller in file.read().split():
                return True
        with open(f"{root}/cgroup.subtree_control", "w", encoding="ascii") as file:
            file.write(f"+{controller}")
    except OSError:
        return False
    return True


@lru_cache(maxsize=1)
def probe() -> Levels:
    """What this process may use here."""
    memory = cpu = None
    memory_root = cpu_root = kill_root = None
    for kind, point, options in _mounts():
        if not _usable(point):
            continue
        if kind == "cgroup2":
            kill_root = point
            if _enabled(point, "memory"):
                memory, memory_root = "cgroup-v2", point
            if _enabled(point, "cpu"):
                cpu, cpu_root = "cgroup-v2", point
        elif "memory" in options.split(",") and memory is None:
            memory, memory_root = "cgroup-v1", point
        elif "cpu" in options.split(",") and cpu is None:
            cpu, cpu_root = "cgroup-v1", point
    return Levels(memory or "rss-watch", cpu or "none", memory_root, cpu_root, kill_root)


def leave_service_cgroup(name: str) -> None:
    """Moves this process out of the cgroup that a service manager would empty on a restart of the daemon.

    That manager follows version 2, or the hierarchy named systemd; where neither may be written nothing changes.
    """
    for kind, point, options in _mounts():
        if kind != "cgroup2" and "name=systemd" not in options.split(","):
            continue
        try:
            os.makedirs(f"{point}/{name}", exist_ok=True)
        except OSError:
            continue
        _write(f"{point}/{name}/cgroup.procs", str(os.getpid()))


class JobCgroups:
    """The cgroups of one attempt. `name` is "courtier-<home>/<attempt>"; every failure leaves the weaker level."""

    def __init__(self, name: str, *, memory_bytes: int | None, cpus_milli: int | None) -> None:
        levels = probe()
        self.memory_level = levels.memory if memory_bytes is not None else "none"
        self._folders: list[str] = []
        self._kill = self._make(levels.kill_root, name)
        self._memory = None
        if memory_bytes is not None and levels.memory_root is not None:
            self._memory = self._limit_memory(levels, name, memory_bytes)
            if self._memory is None:
                self.memory_level = "rss-watch"
        if cpus_milli is not None and levels.cpu_root is not None:
            self._limit_cpu(levels, name, cpus_milli)

    @property
    def enforcement(self) -> str:
        return self.memory_level

    def _make(self, root: str | None, name: str) -> str | None:
        if root is None:
            return None
        folder = f"{root}/{name}"
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError:
            return None
        if folder not in self._folders:
            self._folders.append(folder)
        return folder

    def _limit_memory(self, levels: Levels, name: str, memory_bytes: int) -> str | None:
        folder = self._make(levels.memory_root, name)
        if folder is None:
            return None
        if levels.memory == "cgroup-v2":
            _enabled(os.path.dirname(folder), "memory")
            wanted = [("memory.max", memory_bytes), ("memory.swap.max", 0)]
        else:
            wanted = [("memory.limit_in_bytes", memory_bytes), ("memory.memsw.limit_in_bytes", memory_bytes)]
        if not _write(f"{folder}/{wanted[0][0]}", str(wanted[0][1])):
            return None
        _write(f"{folder}/{wanted[1][0]}", str(wanted[1][1]))
        return folder

    def _limit_cpu(self, levels: Levels, name: str, cpus_milli: int) -> None:
        folder = self._make(levels.cpu_root, name)
        if folder is None:
            return
        quota_us = cpus_milli * CPU_PERIOD_US // 1000
        if levels.cpu == "cgroup-v2":
            _enabled(os.path.dirname(folder), "cpu")
            _write(f"{folder}/cpu.max", f"{quota_us} {CPU_PERIOD_US}")
        else:
            _write(f"{folder}/cpu.cfs_quota_us", str(quota_us))

    def join(self, pid: int) -> None:
        """Moves a process in, before it becomes the job."""
        for folder in self._folders:
            _write(f"{folder}/cgroup.procs", str(pid))

    def kill(self) -> bool:
        """Kills everything in it at once; False where the kernel cannot."""
        return self._kill is not None and _write(f"{self._kill}/cgroup.kill", "1")

    def oom_kills(self) -> int | None:
        """The cgroup's own count of processes killed for memory; None where none counts."""
        if self._memory is None:
            return None
        for name in ("memory.events", "memory.oom_control"):
            try:
                with open(f"{self._memory}/{name}", encoding="ascii") as file:
                    for line in file:
                        key, _, value = line.partition(" ")
                        if key == "oom_kill":
                            return int(value)
            except OSError:
                continue
        return None

    def memory_bytes_peak(self) -> int | None:
        if self._memory is None:
            return None
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            try:
                with open(f"{self._memory}/{name}", encoding="ascii") as file:
                    return int(file.read())
            except (OSError, ValueError):
                continue
        return None

    def remove(self) -> None:
        remove_folders(self._folders)


def job_folders(name: str) -> list[str]:
    """Where an attempt's cgroups lie, if they are there."""
    levels = probe()
    roots = {levels.kill_root, levels.memory_root, levels.cpu_root} - {None}
    return [f"{root}/{name}" for root in roots if os.path.isdir(f"{root}/{name}")]


def kill_folders(folders: list[str]) -> None:
    for folder in folders:
        _write(f"{folder}/cgroup.kill", "1")


def remove_folders(folders: list[str]) -> None:
    for folder in folders:
        try:
            os.rmdir(folder)
        except OSError:
            continue


def _write(path: str, text: str) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(descriptor, text.encode())
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
