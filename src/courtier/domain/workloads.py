"""What users ask to run: the request, the specification fixed at submit, and the job with its state.

`JobSpec` is shared by the elements of an array; `Job` holds what changes. A job's row is this value,
and nothing else: what can be derived (reasons of waiting, estimates) is not in it.
"""

from dataclasses import dataclass
from enum import StrEnum

from courtier.domain.allocations import Allocation
from courtier.domain.attempts import AttemptKey, ProcessIdentity, StopCause
from courtier.domain.lifecycle import JobState
from courtier.domain.reasons import Reason


class WorkloadClass(StrEnum):
    TRAINING = "training"
    INFERENCE = "inference"
    BATCH = "batch"
    INTERACTIVE = "interactive"


class RetryCause(StrEnum):
    """Why an attempt may be repeated; node-lost covers a dead supervisor and a reboot."""

    FAILED = "failed"
    OOM = "oom"
    TIMEOUT = "timeout"
    GPU_LOST = "gpu-lost"
    NODE_LOST = "node-lost"


class DependencyKind(StrEnum):
    AFTER_OK = "afterok"
    AFTER_ANY = "afterany"
    AFTER_NOT_OK = "afternotok"


@dataclass(frozen=True, slots=True)
class Dependency:
    """One job that has to end first, and how."""

    kind: DependencyKind
    job_id: int

    def holds(self, ended_as: JobState) -> bool:
        if self.kind is DependencyKind.AFTER_ANY:
            return True
        return (ended_as is JobState.COMPLETED) is (self.kind is DependencyKind.AFTER_OK)


@dataclass(frozen=True, slots=True)
class Request:
    """What one job needs. gpu_memory_bytes is per GPU; with `split` it is the whole, spread over as few as hold it."""

    gpus: int = 0
    gpu_model: str | None = None
    gpu_memory_bytes: int | None = None
    gpu_milli: int | None = None
    mig_profile: str | None = None
    split: bool = False
    cpus: int = 1
    memory_bytes: int | None = None
    time_limit_ms: int | None = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What was submitted. payload_sha256 names the stored environment and script.

    The simulated use (bytes per GPU, per cent) counts on simulated boxes only.
    """

    name: str
    user: str
    uid: int
    queue: str
    workload_class: WorkloadClass
    command: tuple[bytes, ...]
    directory: bytes
    request: Request
    payload_sha256: str
    labels: tuple[tuple[str, str], ...] = ()
    comment: str | None = None
    script_sha256: str | None = None
    ntasks: int = 1
    grace_ms: int = 30_000
    retry_on: frozenset[RetryCause] = frozenset()
    key: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    append_logs: bool = False
    visible: str = "uuid"
    isolation: str | None = None
    interactive: bool = False
    terminal: bool = False
    umask: int = 0o022
    signal_number: int | None = None
    signal_before_ms: int = 60_000
    signal_leader_only: bool = False
    memory_bytes_simulated: int | None = None
    utilization_percent_simulated: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A job's row. `spawn` counts the supervisors asked for; stop_cause is what it was asked to stop for; xid is the
    last error that the driver reported on its GPUs while it ran."""

    id: int
    spec: JobSpec
    state: JobState
    priority: int
    submitted_ms: int
    array_id: int | None = None
    array_index: int | None = None
    array_limit: int | None = None
    array_size: int | None = None
    begin_ms: int | None = None
    eligible_ms: int | None = None
    dependencies: tuple[Dependency, ...] = ()
    retries_left: int = 0
    attempt: int = 1
    spawn: int = 0
    starts_refused: int = 0
    allocation: Allocation | None = None
    supervisor: ProcessIdentity | None = None
    leader: ProcessIdentity | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    stop_cause: StopCause | None = None
    stop_grace_ms: int | None = None
    stop_by: str | None = None
    reason: Reason | None = None
    memory_bytes_peak: int | None = None
    cpu_ms: int | None = None
    log_truncated: bool = False
    xid: int | None = None

    @property
    def attempt_key(self) -> AttemptKey:
        return AttemptKey(self.id, self.attempt, str(self.spawn))
