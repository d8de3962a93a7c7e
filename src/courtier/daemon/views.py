"""From rows to the wire: what the API says about jobs and GPUs. Translates; decides and remembers nothing."""

import base64
from pathlib import Path

import msgspec

from courtier.api.schema import (
    AllocatedGpu,
    AllocationView,
    Eta,
    External,
    GpuView,
    HealthView,
    JobView,
    Link,
    ReasonObject,
    RequestView,
    Tenant,
)
from courtier.daemon.environment import log_paths
from courtier.domain.allocations import Allocation
from courtier.domain.devices import LINK_KINDS, Box, Device, DeviceMode, DeviceState, Reading
from courtier.domain.health import Quarantine
from courtier.domain.reasons import Reason
from courtier.domain.workloads import Job
from courtier.engine.picture import is_reclaiming
from courtier.engine.state import State
from courtier.metering.health import degraded


def reason_view(reason: Reason | None) -> ReasonObject | None:
    """Code, sentence, and the numbers as fields."""
    if reason is None:
        return None
    return {"code": reason.code, "text": reason.text, **dict(reason.numbers)}


def job_view(job: Job, reason: Reason | None, box: Box, home: Path, *, eta: Eta | None = None) -> JobView:
    spec, request = job.spec, job.spec.request
    command, encoded = _command(spec.command)
    stdout, stderr = log_paths(job, home, box.hostname)
    return JobView(
        id=job.id,
        array_id=job.array_id,
        array_index=job.array_index,
        name=spec.name,
        user=spec.user,
        queue=spec.queue,
        job_class=spec.workload_class.value,
        command=command,
        directory=_text(spec.directory),
        labels=dict(spec.labels),
        state=job.state.value,
        state_code=job.state.code,
        reason=reason_view(reason),
        attempt=job.attempt,
        pid=job.leader.pid if job.leader is not None else None,
        exit_code=job.exit_code,
        signal=job.signal,
        submitted_ms=job.submitted_ms,
        eligible_ms=job.eligible_ms,
        started_ms=job.started_ms,
        finished_ms=job.finished_ms,
        priority=job.priority,
        request=RequestView(
            gpus=request.gpus,
            gpu_model=request.gpu_model,
            gpu_memory_bytes=request.gpu_memory_bytes,
            gpu_milli=request.gpu_milli,
            mig_profile=request.mig_profile,
            cpus=request.cpus,
            memory_bytes=request.memory_bytes,
            time_limit_ms=request.time_limit_ms,
            split=request.split,
        ),
        allocation=_allocation(job.allocation),
        eta=eta,
        command_base64=encoded,
        array_limit=job.array_limit,
        dependencies=[f"{dependency.kind.value}:{dependency.job_id}" for dependency in job.dependencies],
        retries_left=job.retries_left,
        grace_ms=spec.grace_ms,
        stdout_path=_text(stdout),
        stderr_path=_text(stderr),
        script_sha256=spec.script_sha256,
        memory_bytes_peak=job.memory_bytes_peak,
        cpu_ms=job.cpu_ms,
        comment=spec.comment,
        xid=job.xid,
    )


def without_secrets(view: JobView) -> JobView:
    """What others may see of a job: that it is there, whose it is, what it holds and how it stands."""
    return msgspec.structs.replace(
        view,
        command=view.command[:1],
        command_base64=None,
        directory="",
        labels={},
        comment=None,
        stdout_path="",
        stderr_path="",
        script_sha256=None,
    )


def _text(path: bytes) -> str:
    return path.decode("utf-8", "replace")


def _command(command: tuple[bytes, ...]) -> tuple[list[str], list[str] | None]:
    try:
        return [word.decode() for word in command], None
    except UnicodeDecodeError:
        shown = [word.decode("utf-8", "replace") for word in command]
        return shown, [base64.b64encode(word).decode() for word in command]


def _allocation(allocation: Allocation | None) -> AllocationView | None:
    if allocation is None:
        return None
    return AllocationView(
        gpus=[
            AllocatedGpu(share.uuid, share.index, share.model, share.memory_bytes, share.partition)
            for share in allocation.devices
        ],
        isolation=allocation.isolation,
        isolation_reason=allocation.isolation_reason,
        cpus=allocation.cpus,
        memory_bytes=allocation.memory_bytes,
        enforcement=allocation.enforcement,
        master_port=allocation.master_port,
    )


def _health(quarantine: Quarantine | None, reading: Reading | None, hot_celsius: int) -> HealthView:
    if quarantine is not None:
        return HealthView("quarantined", reason_view(quarantine.reason))
    if reading is None:
        return HealthView("unknown", None)
    why = degraded(reading, hot_celsius=hot_celsius)
    return HealthView("healthy" if why is None else "degraded", reason_view(why))


def gpu_view(
    device: Device, state: State, readings: dict[str, Reading], freed_ms: dict[str, int], *, hot_celsius: int
) -> GpuView:
    reading = readings.get(device.uuid)
    tenants = state.tenancy.get(device.uuid, {})
    mode = None
    if tenants:
        mode = DeviceMode.WHOLE if any(share.whole for share in tenants.values()) else DeviceMode.SHARED
    if device.mig:
        mode = DeviceMode.MIG
    external = reading.external if reading is not None else ()
    quarantine = state.quarantines.get(device.uuid)
    if quarantine is not None:
        stands = DeviceState.QUARANTINED
    elif tenants:
        stands = DeviceState.ALLOCATED
    elif is_reclaiming(state, device, reading, freed_ms):
        stands = DeviceState.RECLAIMING
    else:
        stands = DeviceState.EXTERNAL if external else DeviceState.FREE
    return GpuView(
        uuid=device.uuid,
        index=device.index,
        model=device.model,
        memory_bytes_total=device.memory_bytes_total,
        memory_bytes_used=reading.memory_bytes_used if reading is not None else None,
        memory_bytes_allocated=sum(share.memory_bytes for share in tenants.values()),
        utilization_percent=reading.utilization_percent if reading is not None else None,
        temperature_celsius=reading.temperature_celsius if reading is not None else None,
        power_milliwatts=reading.power_milliwatts if reading is not None else None,
        numa_node=device.numa_node,
        links=[Link(uuid, kind, LINK_KINDS.index(kind)) for uuid, kind in device.links],
        state=stands.value,
        mode=mode.value if mode is not None else None,
        health=_health(quarantine, reading, hot_celsius),
        partitions=[],
        tenants=[Tenant(job_id, share.memory_bytes) for job_id, share in sorted(tenants.items())],
        external=[External(p.pid, p.user, p.command, p.memory_bytes) for p in external],
        read_ms=reading.at_ms if reading is not None else None,
    )
