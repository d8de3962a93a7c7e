"""The wire, version 1: every request and answer, as types. OpenAPI, server and clients read these.

Times are Unix milliseconds, amounts are integers with the unit last in the name, absent is null.
May grow; a field never changes its meaning without a new `version`. Imports nothing of the engine.
"""

from typing import Annotated, Any

import msgspec

VERSION = 1

# A reason on the wire: {"code": ..., "text": ..., and its numbers as fields of the same object}.
ReasonObject = dict[str, Any]


class Eta(msgspec.Struct, frozen=True):
    """When a pending job is expected to start."""

    earliest_ms: int
    likely_ms: int
    latest_ms: int
    confidence_percent: int


class RequestView(msgspec.Struct, frozen=True):
    """What a job asked for. `gpu_memory_bytes` is per GPU (the whole with `split`)."""

    gpus: int
    gpu_model: str | None
    gpu_memory_bytes: int | None
    gpu_milli: int | None
    mig_profile: str | None
    cpus: int
    memory_bytes: int | None
    time_limit_ms: int | None
    split: bool = False


class AllocatedGpu(msgspec.Struct, frozen=True):
    """One GPU of an allocation; memory_bytes is what the job may use of it."""

    uuid: str
    index: int
    model: str
    memory_bytes: int
    partition: str | None = None


class AllocationView(msgspec.Struct, frozen=True):
    """What a job was given. `enforcement` says how CPU and memory are held."""

    gpus: list[AllocatedGpu]
    isolation: str
    isolation_reason: str | None
    cpus: int
    memory_bytes: int | None
    enforcement: str | None = None
    master_port: int | None = None


class JobView(msgspec.Struct, frozen=True):
    """A job, whole. id is null where nothing was stored (a dry run)."""

    id: int | None
    array_id: int | None
    array_index: int | None
    name: str
    user: str
    queue: str
    job_class: str = msgspec.field(name="class")
    command: list[str]
    directory: str
    labels: dict[str, str]
    state: str
    state_code: str
    reason: ReasonObject | None
    attempt: int
    pid: int | None
    exit_code: int | None
    signal: int | None
    submitted_ms: int
    eligible_ms: int | None
    started_ms: int | None
    finished_ms: int | None
    priority: int
    request: RequestView
    allocation: AllocationView | None
    eta: Eta | None = None
    command_base64: list[str] | None = None
    array_limit: int | None = None
    dependencies: list[str] = []
    retries_left: int = 0
    grace_ms: int = 30_000
    stdout_path: str | None = None
    stderr_path: str | None = None
    script_sha256: str | None = None
    memory_bytes_peak: int | None = None
    cpu_ms: int | None = None
    comment: str | None = None
    xid: int | None = None


class Link(msgspec.Struct, frozen=True):
    """How a GPU reaches another: kind is nvlink, pix, pxb, phb, node or sys, level its place in that order from 0."""

    uuid: str
    kind: str
    level: int


class HealthView(msgspec.Struct, frozen=True):
    """verdict: healthy, degraded, quarantined or unknown."""

    verdict: str
    reason: ReasonObject | None


class PartitionView(msgspec.Struct, frozen=True):
    """A MIG instance; start and size in memory slices."""

    id: str
    profile: str
    start: int
    size: int
    job: int | None


class Tenant(msgspec.Struct, frozen=True):
    """A job on a GPU and the memory that it declared there."""

    job: int
    memory_bytes: int


class External(msgspec.Struct, frozen=True):
    """A process outside Courtier that holds memory of a GPU."""

    pid: int
    user: str | None
    command: str | None
    memory_bytes: int | None


class GpuView(msgspec.Struct, frozen=True):
    """A GPU as it is now. A reading that is not there is null, never 0."""

    uuid: str
    index: int
    model: str
    memory_bytes_total: int | None
    memory_bytes_used: int | None
    memory_bytes_allocated: int
    utilization_percent: int | None
    temperature_celsius: int | None
    power_milliwatts: int | None
    numa_node: int | None
    links: list[Link]
    state: str
    mode: str | None
    health: HealthView
    partitions: list[PartitionView]
    tenants: list[Tenant]
    external: list[External]
    read_ms: int | None = None


class SubmitBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /v1/jobs. Exactly one of command, command_base64 and script_base64 is given.

    script_base64   a whole script, run through its own #! line (or /bin/sh); arguments follow it
    environment_base64  pairs [name, value]; the job's environment before Courtier's own variables
    array           indices, each becomes a job; array_limit: how many may run at once
    dependencies    "afterok:12", "afterany:12", "afternotok:12"; all must hold
    begin_ms        not before this instant
    retry_on        causes: failed, oom, timeout, gpu-lost, node-lost
    stdout, stderr  path patterns (%j %x %u %A %a %N), relative to directory; null: Courtier's own log
    memory_bytes_simulated, utilization_percent_simulated: what the job seems to use on a simulated box
    signal_number/_before_ms/_leader_only: a warning before the time limit
    """

    command: list[str] | None = None
    command_base64: list[str] | None = None
    script_base64: str | None = None
    script_arguments: list[str] = []
    name: str | None = None
    queue: str = "default"
    job_class: str = msgspec.field(default="batch", name="class")
    directory_base64: str | None = None
    environment_base64: list[tuple[str, str]] = []
    labels: dict[str, str] = {}
    comment: str | None = None
    gpus: int | None = None
    gpu_model: str | None = None
    gpu_memory_bytes: int | None = None
    gpu_milli: int | None = None
    mig_profile: str | None = None
    split: bool = False
    cpus: int = 1
    memory_bytes: int | None = None
    ntasks: int = 1
    time_limit_ms: int | None = None
    grace_ms: int = 30_000
    priority: int = 0
    hold: bool = False
    array: list[int] | None = None
    array_limit: int | None = None
    dependencies: list[str] = []
    begin_ms: int | None = None
    retries: int = 0
    retry_on: list[str] | None = None
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
    dry_run: bool = False


class Submitted(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer of a submit. jobs: an array's, job is its first. existing: the key was known. warnings are for people."""

    version: int
    job: JobView
    jobs: list[JobView] | None = None
    existing: bool = False
    dry_run: bool = False
    warnings: list[str] = []


class OneJob(msgspec.Struct, frozen=True):
    """Answer of GET /v1/jobs/{id}."""

    version: int
    job: JobView


class ManyJobs(msgspec.Struct, frozen=True):
    """Answer of GET /v1/jobs and /v1/history. total counts what matched, beyond `limit`."""

    version: int
    jobs: list[JobView]
    total: int | None = None


class ManyGpus(msgspec.Struct, frozen=True):
    """Answer of GET /v1/gpus."""

    version: int
    gpus: list[GpuView]


class Why(msgspec.Struct, frozen=True):
    """Answer of GET /v1/jobs/{id}/why."""

    version: int
    job: int
    reasons: list[ReasonObject]
    eta: Eta | None


class ManyEvents(msgspec.Struct, frozen=True):
    """Answer of GET /v1/events: objects with sequence, at_ms, kind, job and the fields of their kind."""

    version: int
    events: list[dict[str, Any]]


class ChangeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /v1/jobs/{id}/set. Only what is given changes; time_limit_ms 0 lifts the limit."""

    priority: int | None = None
    time_limit_ms: int | None = None
    name: str | None = None
    queue: str | None = None
    comment: str | None = None
    gpus: int | None = None
    gpu_memory_bytes: int | None = None
    cpus: int | None = None
    memory_bytes: int | None = None
    begin_ms: int | None = None
    array_limit: int | None = None


class CancelBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /v1/jobs/{id}/cancel. signal: only send that signal; now: skip the grace."""

    signal: int | None = None
    now: bool = False


class ErrorObject(msgspec.Struct, frozen=True):
    """What went wrong; numbers of the case are fields of the same object on the wire."""

    code: str
    text: str
    exit_code: int


class ErrorBody(msgspec.Struct, frozen=True):
    """Every answer that is not 2xx."""

    version: int
    error: dict[str, Any]


class DrillBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Trouble for a simulated GPU; value is an Xid, seconds, bytes or degrees, as the kind wants."""

    kind: str
    value: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)] | None = None


class ShutdownBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /v1/shutdown. cancel_jobs: every job is cancelled and waited for first."""

    cancel_jobs: bool = False


class Health(msgspec.Struct, frozen=True):
    """Answer of GET /healthz. box is the simulated specification, or real."""

    version: int
    status: str
    box: str
    pid: int
    home: str
    gpus: int


class Check(msgspec.Struct, frozen=True):
    """One finding of doctor. verdict: ok, warn or fail."""

    name: str
    verdict: str
    text: str
    advice: str | None


class Doctor(msgspec.Struct, frozen=True):
    """Answer of GET /v1/doctor."""

    version: int
    checks: list[Check]


class WaitAnswer(msgspec.Struct, frozen=True):
    """Answer of GET /v1/jobs/{job}/wait. done: what was waited for is so."""

    version: int
    jobs: list[JobView]
    done: bool


class AttachAnswer(msgspec.Struct, frozen=True):
    """Answer of GET /v1/jobs/{job}/attach. directory: where the supervisor listens; null while there is none."""

    version: int
    job: int
    state: str
    directory: str | None
    reason: ReasonObject | None
