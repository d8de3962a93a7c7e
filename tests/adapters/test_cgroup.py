"""Cgroups in both versions, on folders that stand for the kernel's: what is chosen, written, counted and left out."""

import builtins
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from courtier.adapters.process import cgroup
from courtier.adapters.process.cgroup import JobCgroups, Levels, probe

GIB = 1 << 30
V2, V1 = "cgroup2 cgroup2 rw", "cgroup cgroup rw"
Mounts = Callable[[list[tuple[Path, str]]], None]


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Says what /proc/self/mountinfo reads; everything else is read as it is."""
    real_open = builtins.open

    def told(table: list[tuple[Path, str]]) -> None:
        lines = [f"{n} 1 0:{n} / {point} rw - {right}" for n, (point, right) in enumerate(table, 20)]
        text = "\n".join(["1 0 8:1 / / rw shared:1 - ext4 /dev/vda rw", *lines]) + "\n"

        def fake(path: Any, *arguments: Any, **named: Any) -> Any:
            return io.StringIO(text) if path == "/proc/self/mountinfo" else real_open(path, *arguments, **named)

        monkeypatch.setattr(builtins, "open", fake)
        probe.cache_clear()

    yield told
    monkeypatch.undo()
    probe.cache_clear()


def folder(base: Path, name: str, **files: str) -> Path:
    made = base / name
    made.mkdir()
    for file, text in files.items():
        (made / file.replace("__", ".")).write_text(text)
    return made


def test_version_2_where_its_controllers_are_ours(tmp_path: Path, mounts: Mounts) -> None:
    unified = folder(tmp_path, "unified", cgroup__subtree_control="cpu memory pids\n")
    mounts([(unified, V2)])
    assert probe() == Levels("cgroup-v2", "cgroup-v2", str(unified), str(unified), str(unified))


def test_version_1_takes_each_controller_where_it_is(tmp_path: Path, mounts: Mounts) -> None:
    memory, cpu, other = (folder(tmp_path, name) for name in ("memory", "cpu", "pids"))
    mounts([(other, f"{V1},pids"), (memory, f"{V1},memory"), (cpu, f"{V1},cpu,cpuacct")])
    assert probe() == Levels("cgroup-v1", "cgroup-v1", str(memory), str(cpu), None)


def test_a_hybrid_kills_by_version_2_and_counts_by_version_1(tmp_path: Path, mounts: Mounts) -> None:
    unified, memory = folder(tmp_path, "unified"), folder(tmp_path, "memory")
    mounts([(memory, f"{V1},memory"), (unified, V2)])
    assert probe() == Levels("cgroup-v1", "none", str(memory), None, str(unified))


@pytest.mark.parametrize("table", [[], [(Path("/proc"), V2)], [(Path("/nowhere"), f"{V1},memory")]])
def test_nothing_is_claimed_where_nothing_can_be_made(table: list[tuple[Path, str]], mounts: Mounts) -> None:
    mounts(table)
    assert probe() == Levels("rss-watch", "none", None, None, None)


def job_files(monkeypatch: pytest.MonkeyPatch, base: Path, levels: Levels, *names: str) -> tuple[JobCgroups, Path]:
    """A job's cgroup with the files that the kernel would put there."""
    monkeypatch.setattr(cgroup, "probe", lambda: levels)
    job = base / "courtier-x" / "1.1.1"
    job.mkdir(parents=True)
    for name in names:
        (job / name).write_text("")
    return JobCgroups("courtier-x/1.1.1", memory_bytes=2 * GIB, cpus_milli=1500), job


def test_limits_of_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = Levels("cgroup-v2", "cgroup-v2", str(tmp_path), str(tmp_path), str(tmp_path))
    names = ("memory.max", "memory.swap.max", "cpu.max", "cgroup.procs", "cgroup.kill")
    made, job = job_files(monkeypatch, tmp_path, levels, *names)
    assert made.enforcement == "cgroup-v2"
    assert [(job / name).read_text() for name in names[:3]] == [str(2 * GIB), "0", "150000 100000"]
    made.join(77)
    assert (job / "cgroup.procs").read_text() == "77"
    assert made.kill() and (job / "cgroup.kill").read_text() == "1"
    assert (made.oom_kills(), made.memory_bytes_peak()) == (None, None)
    (job / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 5\noom_kill 2\noom_group_kill 7\n")
    (job / "memory.peak").write_text("123456\n")
    assert (made.oom_kills(), made.memory_bytes_peak()) == (2, 123456)


def test_limits_of_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = Levels("cgroup-v1", "cgroup-v1", str(tmp_path), str(tmp_path), None)
    names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "cpu.cfs_quota_us")
    made, job = job_files(monkeypatch, tmp_path, levels, *names)
    assert made.enforcement == "cgroup-v1"
    assert [(job / name).read_text() for name in names] == [str(2 * GIB), str(2 * GIB), "150000"]
    assert not made.kill()
    (job / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 1\noom_kill 3\n")
    (job / "memory.max_usage_in_bytes").write_text("99\n")
    assert (made.oom_kills(), made.memory_bytes_peak()) == (3, 99)


def test_a_limit_that_cannot_be_written_is_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = Levels("cgroup-v1", "none", str(tmp_path), None, None)
    made, _ = job_files(monkeypatch, tmp_path, levels)
    assert made.enforcement == "rss-watch"
    assert (made.oom_kills(), made.memory_bytes_peak()) == (None, None)


def test_no_limit_is_no_enforcement_and_the_folder_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "probe", lambda: Levels("cgroup-v2", "none", str(tmp_path), None, str(tmp_path)))
    made = JobCgroups("c/1", memory_bytes=None, cpus_milli=None)
    assert made.enforcement == "none"
    assert (tmp_path / "c" / "1").is_dir()
    made.remove()
    made.remove()
    assert not (tmp_path / "c" / "1").exists()
