"""Small values of the domain for tests: everything has a default, each test names what it is about."""

from dataclasses import replace
from typing import Any

from courtier.domain.allocations import Allocation, DeviceShare
from courtier.domain.attempts import AttemptKey, AttemptPhase, AttemptStatus, ProcessIdentity
from courtier.domain.devices import Box, Device, Reading
from courtier.domain.lifecycle import JobState
from courtier.domain.workloads import Job, JobSpec, Request, WorkloadClass
from courtier.engine.state import State
from courtier.engine.turn import Limits, Turn

GIB = 1 << 30
NOW = 1_000_000
BOOT = "boot-0"


def make_device(index: int, *, size_gib: int = 80, model: str = "A100-80GB", **fields: Any) -> Device:
    return Device(f"GPU-{index}", index, model, size_gib * GIB, 0, 0, **fields)


def make_box(*devices: Device, cpus: int = 32, memory_gib: int = 256) -> Box:
    return Box("box", cpus, memory_gib * GIB, devices or tuple(make_device(n) for n in range(4)))


def make_spec(request: Request | None = None, **fields: Any) -> JobSpec:
    made = JobSpec(
        "train", "ada", 1000, "default", WorkloadClass.BATCH, (b"true",), b"/home/ada", request or Request(), "0" * 64
    )
    return replace(made, **fields)


def make_share(index: int, *, size_gib: int = 80, whole: bool = True) -> DeviceShare:
    return DeviceShare(f"GPU-{index}", index, "A100-80GB", size_gib * GIB, whole)


def make_allocation(*shares: DeviceShare, **fields: Any) -> Allocation:
    return replace(Allocation(shares, 1, None, "env", None, BOOT, NOW), **fields)


def make_job(number: int = 1, state: JobState = JobState.PENDING, request: Request | None = None, **fields: Any) -> Job:
    """A job; a pending one is eligible, a holding one has an allocation without GPUs and its first spawn."""
    spec = fields.pop("spec", None) or make_spec(request)
    made = Job(number, spec, state, 0, NOW)
    if state is JobState.PENDING:
        made = replace(made, eligible_ms=NOW)
    elif state in (JobState.STARTING, JobState.RUNNING, JobState.COMPLETING):
        made = replace(made, allocation=make_allocation(), spawn=1)
    return replace(made, **fields)


def make_status(job: Job, phase: AttemptPhase, **fields: Any) -> AttemptStatus:
    """As the world shows the job's own attempt."""
    made = AttemptStatus(job.attempt_key, phase)
    if phase in (AttemptPhase.RUNNING, AttemptPhase.COMPLETING, AttemptPhase.ENDED, AttemptPhase.VANISHED):
        supervisor, leader = ProcessIdentity(BOOT, 10, 1), ProcessIdentity(BOOT, 11, 1)
        made = replace(made, supervisor=supervisor, leader=leader, started_ms=NOW + 10)
    if phase is AttemptPhase.ENDED:
        made = replace(made, finished_ms=NOW + 20)
    return replace(made, **fields)


def make_turn(*jobs: Job, box: Box | None = None, now: int = NOW + 100, **limits: Any) -> Turn:
    state = State(jobs, next_id=max((job.id for job in jobs), default=0) + 1)
    return Turn(state, box or make_box(), BOOT, Limits(**limits), {}, now)


def make_reading(index: int, at_ms: int, *tenants: tuple[int, int], used: int = 0, **fields: Any) -> Reading:
    return Reading(f"GPU-{index}", at_ms, used, 0, 30, 50_000, tenants, **fields)


def kinds(turn: Turn) -> list[str]:
    return [event.kind for event in turn.events]


def stale_key(job: Job) -> AttemptKey:
    """The key of the spawn before the job's own."""
    return replace(job.attempt_key, nonce=str(job.spawn - 1))
