"""Every point of a job's life meets every fault, on real processes.

Whatever happens: no accepted job lost, no id reused, at most one start per attempt, the exit code exact wherever
a supervisor lived to write it, no GPU leaked, no stranger signalled, each event once.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import LiveBroker, alive, carrying, wait_until
from courtier.adapters.process.attach import Attachment

CODE = 7
# Shorter than the freeze of a stopped daemon, so that every deadline passes meanwhile.
DEADLINE_MS = 300
FREEZE_SECONDS = 0.6

POINTS = ("accepted", "placed", "spawned", "running", "exiting", "finished", "cleaned")
FAULTS = ("daemon", "supervisor", "both", "stopped", "disk", "boot")
# Where the fault takes the only witness along, the job is lost and says why; everywhere else its code is exact.
LOST = {
    ("spawned", "supervisor"): "supervisor_lost",
    ("spawned", "both"): "supervisor_lost",
    ("spawned", "boot"): "node_rebooted",
    ("running", "supervisor"): "supervisor_lost",
    ("running", "both"): "supervisor_lost",
    ("running", "boot"): "node_rebooted",
}


def fork_server(live: LiveBroker) -> int:
    """The daemon's own child that forks supervisors."""
    daemon = live.pid

    def find() -> int:
        for pid in Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split():
            if b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
        return 0

    return wait_until(find, "the fork server")  # type: ignore[no-any-return]


class Scene:
    """One job brought to one point; knows whom a fault hits and how the job gets to its end."""

    def __init__(self, live: LiveBroker, folder: Path) -> None:
        self.live = live
        self.daemon = live.pid
        self.gate = folder / "gate"
        self.starts = folder / "starts"
        self.children = folder / "children"
        self.keepers: list[int] = []  # processes that must be gone in the end, whoever ends them
        self.frozen: list[int] = []
        self.attachments: list[Attachment] = []
        self.release: list[Callable[[], object]] = [self.gate.touch]

    def command(self, tail: str = "") -> str:
        return f"echo x >> {self.starts}; {tail} while [ ! -e {self.gate} ]; do sleep 0.01; done; exit {CODE}"

    def submit(self, script: str, **fields: object) -> int:
        self.job = int(self.live.submit("sh", "-c", script, gpus=8, **fields)["id"])
        return self.job

    def record_says(self, word: bytes) -> bool:
        return any(word in path.read_bytes() for path in (self.live.home / "run").glob(f"{self.job}.1.*/record"))

    # Points of a life, each left standing still.

    def accepted(self) -> None:
        holder = self.live.submit("sleep", "1000", gpus=8)["id"]
        self.keepers = [self.live.running(holder)["pid"]]
        self.victim = self.live.supervisor(holder)
        self.submit(self.command())
        assert self.live.job(self.job)["state"] == "pending"

        def free() -> None:
            if self.live.job(holder)["state"] == "running":
                self.live.post(holder, "cancel", {"now": True})

        self.release.append(free)

    def placed(self) -> None:
        self.victim = fork_server(self.live)
        self.freeze(self.victim)
        self.submit(self.command())
        wait_until(lambda: self.live.job(self.job)["state"] == "starting", "a placed job")
        assert not self.record_says(b"start_ticks")

    def spawned(self) -> None:
        self.submit(self.command(), interactive=True)
        wait_until(lambda: self.record_says(b"start_ticks"), "a claim")
        self.victim = self.live.supervisor(self.job)
        self.keepers = [self.victim]
        self.release.append(self.join)

    def join(self) -> None:
        answer = self.live.client.call("GET", f"/v1/jobs/{self.job}/attach", timeout_ms=5000)
        if answer["directory"] is not None:
            self.attachments.append(Attachment(answer["directory"], own=True, terminal=False))

    def running(self) -> None:
        self.submit(self.command())
        leader = self.live.running(self.job)["pid"]
        # It counts as running once its process is there; its first own act comes a moment later.
        wait_until(self.starts.exists, "the job's first act")
        self.victim = self.live.supervisor(self.job)
        self.keepers = [leader, self.victim]

    def exiting(self) -> None:
        child = f"import signal; signal.signal(15,1); print('x',file=open('{self.children}','w')); signal.pause()"
        waits = f"while [ ! -s {self.children} ]; do sleep 0.01; done;"
        self.gate.touch()
        script = self.command(f'setsid {sys.executable} -c "{child}" & {waits}')
        self.submit(script, grace_ms=600_000)
        wait_until(lambda: self.live.job(self.job)["state"] == "completing", "a job whose tree is not empty")
        (orphan,) = carrying(self.children)
        self.victim = self.live.supervisor(self.job)
        self.keepers = [orphan, self.victim]
        self.release.append(lambda: os.kill(orphan, signal.SIGKILL) if alive(orphan) else None)

    def finished(self) -> None:
        self.running()
        self.freeze(self.daemon)
        self.gate.touch()
        wait_until(lambda: self.record_says(b"finished_ms"), "the end on record")
        wait_until(lambda: not alive(self.victim), "the supervisor's own end")
        self.victim = 0

    def cleaned(self) -> None:
        self.running()
        self.gate.touch()
        self.live.wait(self.job)
        wait_until(lambda: not list((self.live.home / "run").glob(f"{self.job}.1.*")), "no traces")
        self.victim = fork_server(self.live)

    # What befalls it.

    def freeze(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self.frozen.append(pid)

    def thaw(self) -> None:
        for pid in self.frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.frozen.clear()

    def kill(self, pid: int) -> None:
        if pid:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not alive(pid), "a death")

    def strike(self, fault: str) -> None:
        if fault in ("daemon", "both", "boot"):
            self.kill(self.daemon)
        if fault in ("supervisor", "both"):
            self.kill(self.victim)
        if fault == "boot":
            self.live.environment["COURTIER_BOOT_ID"] = "the-next-boot"
        if fault in ("daemon", "both", "boot"):
            self.up()
        if fault == "stopped":
            self.freeze(self.daemon)
            until = time.monotonic() + FREEZE_SECONDS
            if self.victim in self.frozen:
                os.kill(self.victim, signal.SIGCONT)
            wait_until(lambda: time.monotonic() > until, "every deadline to pass")
        if fault == "disk":
            self.fill()

    def up(self) -> None:
        self.live.up("--set", f"spawn_deadline_ms={DEADLINE_MS}")

    def fill(self) -> None:
        filler = self.live.home.parent / "filler"
        with filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"x" * size) == size:
                        pass
        # What the daemon meets while the disk is full: a submit is refused and leaves nothing behind.
        if not self.frozen or self.daemon not in self.frozen:
            refused = self.live.cli("submit", "-q", "--", "true", check=False)
            assert (refused.returncode, refused.stdout) == (1, b""), refused
        self.release.insert(0, filler.unlink)


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    small = request.node.callspec.params["fault"] == "disk"
    if small and os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    base = Path(tempfile.mkdtemp(prefix="courtier-test-"))
    if small:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(base)], check=True)
    live = LiveBroker(base / "state")
    live.up("--set", f"spawn_deadline_ms={DEADLINE_MS}")
    made = Scene(live, tmp_path)
    try:
        yield made
    finally:
        made.thaw()
        for attachment in made.attachments:
            attachment.close()
        live.stop()
        # A boot that was only pretended leaves the old one's processes behind, which nobody may signal.
        for pid in made.keepers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if small:
            subprocess.run(["umount", "-l", str(base)], check=True)
        shutil.rmtree(base, ignore_errors=True)


def judge(scene: Scene, point: str, fault: str) -> None:
    live, job = scene.live, scene.job
    ended = live.wait(job)
    lost = LOST.get((point, fault))
    if lost is not None:
        assert (ended["state"], ended["reason"]["code"], ended["exit_code"]) == ("lost", lost, None), ended
    else:
        assert (ended["state"], ended["exit_code"], ended["attempt"]) == ("failed", CODE, 1), ended
    assert ended["attempt"] == 1
    begun = 0 if lost is not None and point == "spawned" else 1
    assert (scene.starts.read_text() if begun else "") == "x\n" * begun
    assert scene.starts.exists() == bool(begun)
    kinds = live.kinds(job)
    assert (kinds.count("submitted"), kinds.count("started"), kinds.count("exited")) == (1, begun, int(lost is None))
    assert (kinds.count("finished"), kinds.count("lost")) == ((1, 0) if lost is None else (0, 1))
    later = live.submit("true", gpus=8)
    assert later["id"] > max(job, *(j["id"] for j in live.client.call("GET", "/v1/history")["jobs"]), 0)
    assert live.wait(later["id"])["state"] == "completed"
    wait_until(lambda: live.gpus_free() == 8, "all GPUs free")
    sequences = [event["sequence"] for event in live.client.call("GET", "/v1/events")["events"]]
    assert sequences == list(range(1, len(sequences) + 1))
    assert live.kinds(job) == kinds


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("point", POINTS)
def test_point_meets_fault(scene: Scene, stranger: subprocess.Popen[bytes], point: str, fault: str) -> None:
    getattr(scene, point)()
    scene.strike(fault)
    scene.thaw()
    if fault == "boot" and (point, fault) in LOST:
        # Processes of another boot are strangers: their numbers may be anybody's by now.
        scene.live.wait(scene.job)
        assert all(alive(pid) for pid in scene.keepers)
    for step in scene.release:
        step()
    judge(scene, point, fault)
    if fault != "boot":
        wait_until(lambda: not any(alive(pid) for pid in scene.keepers), "the end of all of the job's processes")
    assert stranger.poll() is None
