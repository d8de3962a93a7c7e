"""The promises of engine.ports.Store, kept by SQLite and by the simulator's store alike."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from courtier.adapters.filesystem import filesystem_type, refuse_network_filesystem
from courtier.adapters.sqlite import MIGRATIONS, SqliteStore
from courtier.domain.workloads import Job
from courtier.engine.events import fold
from courtier.engine.ports import PortError
from courtier.sim.faults import Misfortune
from courtier.sim.store import MemoryStore
from courtier.sim.world import World


@pytest.fixture(params=["sqlite", "memory"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    if request.param == "memory":
        store = MemoryStore()
        return lambda: store
    return lambda: SqliteStore(tmp_path / "courtier.db")


def play(store: Any, seed: int, *, until_ms: int = 20_000) -> World:
    world = World(seed, store=store)
    Misfortune(world, seed)
    world.submit_some(6)
    world.run(world.now + until_ms)
    return world


class Kept(SqliteStore):
    """SQLite, with the rows and events where the simulator's checkers look for them."""

    full = False

    @property
    def rows(self) -> dict[int, Job]:
        return {job.id: job for job in self.all_jobs()}

    def commit(self, outcome: Any) -> None:
        if self.full:
            raise PortError("store_full", "full")
        super().commit(outcome)

    @property
    def events(self) -> Any:
        return _Events(self)


class _Events:
    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def __getitem__(self, wanted: slice) -> Any:
        return SqliteStore.events(self._store, job=None, after=wanted.start or 0, limit=1 << 40)


def test_a_new_store_is_empty(make_store: Callable[[], Any]) -> None:
    jobs, next_id, next_sequence = make_store().load()
    assert (list(jobs), next_id, next_sequence) == ([], 1, 1)


@pytest.mark.parametrize("seed", range(6))
def test_events_of_a_database_fold_to_its_rows(tmp_path: Path, seed: int) -> None:
    store = Kept(tmp_path / "courtier.db")
    play(store, seed)
    rows: dict[int, Job] = {}
    for event in store.events[0:]:
        fold(rows, event)
    assert rows == store.rows
    assert rows


def test_what_is_loaded_is_what_was_kept(tmp_path: Path) -> None:
    store = Kept(tmp_path / "courtier.db")
    world = play(store, 40, until_ms=2_500)
    assert world.loop is not None
    live = dict(world.loop.state.jobs)
    store.close()
    jobs, next_id, next_sequence = SqliteStore(tmp_path / "courtier.db").load()
    assert {job.id: job for job in jobs} == live
    assert (next_id, next_sequence) == (world.loop.state.next_id, world.loop.state.next_sequence)


def test_a_killed_writer_leaves_whole_steps(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from courtier.adapters.sqlite import SqliteStore; "
        "from courtier.engine.loop import Loop; from courtier.engine.state import State; "
        "from courtier.sim.world import simulated_box, World; from courtier.engine.stimuli import SubmitAsked\n"
        "from courtier.domain.workloads import *\n"
        "store = SqliteStore(Path(sys.argv[1])); jobs, i, s = store.load()\n"
        "loop = Loop(simulated_box(), 'b', state=State(jobs, next_id=i, next_sequence=s))\n"
        "spec = JobSpec('n','u',0,'q',WorkloadClass.BATCH,(b'x',),b'/',Request(gpus=1),'0')\n"
        "for n in range(100000):\n"
        "    out = loop.step([SubmitAsked(n, spec, b'', hold=True, array=(0, 1, 2))], n)\n"
        "    store.commit(out); loop.commit(); print(out.next_id, flush=True)\n"
    )
    path = tmp_path / "courtier.db"
    highest = 1
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        lines = [int(process.stdout.readline()) for _ in range(40)]
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        acknowledged = int(rest[-1]) if rest and rest[-1].isdigit() else lines[-1]
        assert lines[0] > highest
        store = SqliteStore(path)
        jobs, next_id, next_sequence = store.load()
        assert next_id >= acknowledged
        assert len(jobs) % 3 == 0
        assert [event.sequence for event in store.events(job=None, after=0, limit=1 << 40)] == list(
            range(1, next_sequence)
        )
        highest = next_id
        store.close()


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "courtier.db"
    SqliteStore(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    with pytest.raises(PortError, match="newer"):
        SqliteStore(path)


def test_a_counter_behind_its_jobs_is_refused(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "courtier.db"
    store = Kept(path)
    play(store, 3, until_ms=4_000)
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = 1 WHERE name = 'next_id'")
    db.close()
    with pytest.raises(PortError, match="counter"):
        SqliteStore(path).load()


MOUNTS = (
    "22 1 254:0 / / rw - ext4 /dev/vda rw\n"
    "30 22 0:40 / /home rw - nfs4 server:/home rw\n"
    "31 30 0:41 / /home/local\\040disk rw - xfs /dev/vdb rw\n"
)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/var", "ext4"), ("/home/ada", "nfs4"), ("/home/local disk/x", "xfs"), ("/homes", "ext4")],
)
def test_the_mount_of_a_path(path: str, kind: str) -> None:
    assert filesystem_type(Path(path), MOUNTS) == kind


def test_a_network_file_system_is_refused_with_the_reason() -> None:
    with pytest.raises(PortError, match=r"network file system \(nfs4\)"):
        refuse_network_filesystem(Path("/home/ada"), MOUNTS)
    refuse_network_filesystem(Path("/var"), MOUNTS)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_both_stores_tell_the_same_story(seed: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        kept = Kept(Path(folder) / "courtier.db")
        with_sqlite = play(kept, seed, until_ms=8_000)
        with_memory = play(MemoryStore(), seed, until_ms=8_000)
        assert with_sqlite.trace == with_memory.trace
        assert kept.rows == with_memory.store.rows
        kept.close()
