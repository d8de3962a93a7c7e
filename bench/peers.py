"""The queues that people run today, each started by the bench in a folder of its own: task-spooler and Slurm.

A peer answers two questions in its own way: how long from the acknowledgement of a submit to the command's own
first act, and how many trivial jobs a second come out of a full queue of eight places.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Protocol

PLACES = 8
DRAIN_SECONDS = 20.0
SLURM_TUNED = "batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1"


class Peer(Protocol):
    """Use as a context manager, after missing() said None."""

    name: str

    def missing(self) -> str | None: ...
    def __enter__(self) -> "Peer": ...
    def __exit__(self, *_: object) -> None: ...
    def start_ms(self, runs: int) -> list[float]: ...
    def drain_per_second(self, jobs: int) -> float: ...


class _Folder:
    def __enter__(self) -> "_Folder":
        self.folder = Path(tempfile.mkdtemp(prefix="courtier-peer-"))
        self.environment = dict(os.environ)
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _open(self) -> None: ...
    def _close(self) -> None: ...

    def call(self, *words: str) -> str:
        return subprocess.run(
            words, env=self.environment, cwd=self.folder, check=True, capture_output=True, text=True, timeout=120
        ).stdout


class TaskSpooler(_Folder):
    """Debian's task-spooler: one server per socket, no priorities, no GPUs."""

    name = "task-spooler"

    def missing(self) -> str | None:
        return None if shutil.which("tsp") else "task-spooler is not installed"

    def _open(self) -> None:
        self.environment |= {
            "TS_SOCKET": str(self.folder / "socket"),
            "TMPDIR": str(self.folder),
            "TS_SLOTS": str(PLACES),
            "TS_MAXFINISHED": "20",
        }

    def _close(self) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            self.call("tsp", "-K")

    def start_ms(self, runs: int) -> list[float]:
        found = []
        for number in range(runs):
            path = self.folder / f"start{number}"
            self.call("tsp", "sh", "-c", f"exec date +%s%N > {path}")
            acknowledged = time.time_ns()
            self.call("tsp", "-w")
            found.append((int(path.read_text()) - acknowledged) / 1e6)
        return found

    def drain_per_second(self, jobs: int) -> float:
        """It has no arrays: its submits are part of the time."""
        begin = time.perf_counter()
        for _ in range(jobs):
            self.call("tsp", "-n", "true")
        while any(word in self.call("tsp") for word in (" queued ", " running ")):
            time.sleep(0.01)
        return jobs / (time.perf_counter() - begin)


class Slurm(_Folder):
    """Debian's slurm-wlm on this machine alone: eight places of one GPU, no accounting, no cgroups."""

    def __init__(self, name: str, parameters: str) -> None:
        self.name = name
        self._parameters = parameters
        self._daemons: list[subprocess.Popen[bytes]] = []

    def missing(self) -> str | None:
        if not all(shutil.which(word) for word in ("slurmctld", "slurmd", "sbatch")):
            return "slurm-wlm is not installed"
        return None if os.geteuid() == 0 else "slurmd needs root"

    def _configuration(self) -> str:
        host, folder = socket.gethostname().split(".")[0], self.folder
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            two.bind(("127.0.0.1", 0))
            ports = one.getsockname()[1], two.getsockname()[1]
        lines = [
            "ClusterName=bench",
            f"SlurmctldHost={host}(127.0.0.1)",
            "AuthType=auth/none",
            "CredType=cred/none",
            "SlurmUser=root",
            f"SlurmctldPort={ports[0]}",
            f"SlurmdPort={ports[1]}",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/slurmd.pid",
            f"SlurmctldLogFile={folder}/slurmctld.log",
            f"SlurmdLogFile={folder}/slurmd.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SwitchType=switch/none",
            "MpiDefault=none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "JobAcctGatherType=jobacct_gather/none",
            "GresTypes=gpu",
            "SlurmdParameters=config_overrides",
            f"NodeName={host} NodeAddr=127.0.0.1 CPUs={PLACES} RealMemory=1000 Gres=gpu:{PLACES}",
            f"PartitionName=all Nodes={host} Default=YES State=UP",
        ]
        if self._parameters:
            lines.append(f"SchedulerParameters={self._parameters}")
        return "\n".join(lines) + "\n"

    def _open(self) -> None:
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        for number in range(PLACES):
            (self.folder / f"gpu{number}").touch()
        host = socket.gethostname().split(".")[0]
        (self.folder / "slurm.conf").write_text(self._configuration())
        (self.folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File={self.folder}/gpu[0-{PLACES - 1}]\n")
        self.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")
        for words in (["slurmctld", "-D", "-c"], ["slurmd", "-D"]):
            self._daemons.append(
                subprocess.Popen(
                    words, env=self.environment, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )
        deadline = time.monotonic() + 60
        while self._state() != "idle":
            if time.monotonic() > deadline:
                raise RuntimeError(f"Slurm's node is {self._state() or 'unknown'} after 60 s")
            time.sleep(0.1)

    def _state(self) -> str:
        try:
            return self.call("sinfo", "-h", "-o", "%T").strip()
        except subprocess.SubprocessError:
            return ""

    def _close(self) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            self.call("scancel", "--partition=all")
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons:
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def start_ms(self, runs: int) -> list[float]:
        found = []
        for number in range(runs):
            path = self.folder / f"start{number}"
            self.call("sbatch", "--parsable", "--gpus=1", "-o", str(path), "--wrap", "exec date +%s%N")
            acknowledged = time.time_ns()
            while not (path.exists() and path.read_text().endswith("\n")):
                time.sleep(0.002)
            found.append((int(path.read_text()) - acknowledged) / 1e6)
        return found

    def drain_per_second(self, jobs: int) -> float:
        """From an array; where it takes longer than DRAIN_SECONDS, the rate until then."""
        begin = time.perf_counter()
        self.call("sbatch", "--parsable", "--gpus=1", f"--array=0-{jobs - 1}", "-o", "/dev/null", "--wrap", "true")
        left = jobs
        while left and time.perf_counter() - begin < DRAIN_SECONDS:
            time.sleep(0.2)
            left = len(self.call("squeue", "-h", "-r", "-o", "%i").split())
        return (jobs - left) / (time.perf_counter() - begin)


def peers() -> list[TaskSpooler | Slurm]:
    """In the order of their lines."""
    return [TaskSpooler(), Slurm("Slurm, tuned", SLURM_TUNED), Slurm("Slurm, default", "")]
