"""One start of one job, as the world shows it.

An attempt is owned by a supervisor process that outlives the daemon. Whatever the daemon knows
about an attempt it learns as an `AttemptStatus`: the same value comes from a notice, from the
periodic sweep and from recovery after a crash, so that one piece of code draws the conclusions.
Never holds a bare pid: a process is known by boot, pid and start time.
"""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that no other can be taken for: pids are reused, and start again after a boot.

    `start_ticks` is field 22 of /proc/PID/stat (clock ticks since boot).
    """

    boot_id: str
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """Names one spawn. `nonce` tells two spawns of one attempt apart: the first may be revoked
    before its supervisor claimed it, and only then may a second be asked for."""

    job_id: int
    attempt: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.job_id}.{self.attempt}.{self.nonce}"


class AttemptPhase(StrEnum):
    """How far an attempt has come, seen from outside."""

    ABSENT = "absent"  # nobody claimed it: it may still be on its way to a supervisor
    REVOKED = "revoked"  # nobody claimed it, and nobody can any more
    REFUSED = "refused"  # the supervisor could not begin (disk full, log not writable); nothing ran
    CLAIMED = "claimed"  # a living supervisor owns it; the job's process is not started yet
    RUNNING = "running"  # the job's process was started
    COMPLETING = "completing"  # the job's process ended; processes it left behind are being stopped
    ENDED = "ended"  # the tree is empty and the end is on disk
    VANISHED = "vanished"  # the supervisor died without an end on disk; the tree was made empty


class StopCause(StrEnum):
    """Why a supervisor was told, or decided, to stop its job."""

    CANCEL = "cancel"
    TIME_LIMIT = "time_limit"
    PREEMPT = "preempt"
    REQUEUE = "requeue"
    CLIENT_GONE = "client_gone"  # the terminal that `run` or `shell` belonged to went away
    MEMORY_WATCH = "memory_watch"  # resident memory over the limit where no cgroup enforces it
    GPU_MEMORY = "gpu_memory"  # GPU memory over what the job declared, on a shared GPU
    DEVICE_LOST = "device_lost"  # a GPU of the job fell away


@dataclass(frozen=True, slots=True)
class AttemptStatus:
    """What is known of one attempt. Fields that do not apply to the phase are None.

    exit_code     of the job's own process, 0..255; None when a signal ended it
    signal        number that ended the job's own process, else None
    stop_cause    why it was stopped, None when it ended by itself
    oom_kills     the cgroup's own count of kills for memory; None where no cgroup counts
    error         sentence of the supervisor when it could not start the command; exit_code is then 126 or 127
    enforcement   how CPU and memory are held: "cgroup-v2", "cgroup-v1", "rss-watch" or "none"
    """

    key: AttemptKey
    phase: AttemptPhase
    supervisor: ProcessIdentity | None = None
    leader: ProcessIdentity | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    stop_cause: StopCause | None = None
    oom_kills: int | None = None
    memory_bytes_peak: int | None = None
    cpu_ms: int | None = None
    log_truncated: bool = False
    enforcement: str | None = None
    error: str | None = None
