"""Lists for programs (`-o csv`: exact values under the wire's own names) and for wide terminals (`-o wide`)."""

from typing import Any

from courtier.cli import render

Row = list[str]

JOB_FIELDS = [
    "id",
    "array_id",
    "array_index",
    "name",
    "user",
    "queue",
    "class",
    "state",
    "state_code",
    "attempt",
    "exit_code",
    "signal",
    "priority",
    "submitted_ms",
    "eligible_ms",
    "started_ms",
    "finished_ms",
]
REQUEST_FIELDS = ["gpus", "gpu_model", "gpu_memory_bytes", "cpus", "memory_bytes", "time_limit_ms"]
JOB_CSV = [*JOB_FIELDS, *REQUEST_FIELDS, "allocated_gpus", "isolation", "reason"]
GPU_CSV = [
    "index",
    "uuid",
    "model",
    "state",
    "mode",
    "memory_bytes_total",
    "memory_bytes_used",
    "memory_bytes_allocated",
    "utilization_percent",
    "temperature_celsius",
    "power_milliwatts",
    "numa_node",
]
GPU_CSV_ALL = [*GPU_CSV, "health", "jobs", "external_bytes"]
EVENT_CSV = ["sequence", "at_ms", "kind", "job", "gpu", "reason"]
JOB_WIDE = [*render.JOB_HEADER[:-1], "PRIO", "ATTEMPT", "ISOLATION", "SUBMITTED", "STARTED", "REASON"]
GPU_WIDE = [*render.GPU_HEADER[:-1], "POWER", "NUMA", "HEALTH", "UUID", "JOBS"]


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def job_csv(job: dict[str, Any]) -> Row:
    allocation = job["allocation"] or {"gpus": [], "isolation": None}
    return [
        *(_cell(job[name]) for name in JOB_FIELDS),
        *(_cell(job["request"][name]) for name in REQUEST_FIELDS),
        ";".join(str(gpu["index"]) for gpu in allocation["gpus"]),
        _cell(allocation["isolation"]),
        job["reason"]["code"] if job["reason"] is not None else "",
    ]


def gpu_csv(gpu: dict[str, Any]) -> Row:
    return [
        *(_cell(gpu[name]) for name in GPU_CSV),
        gpu["health"]["verdict"],
        ";".join(str(tenant["job"]) for tenant in gpu["tenants"]),
        str(sum(process["memory_bytes"] or 0 for process in gpu["external"])),
    ]


def event_csv(event: dict[str, Any]) -> Row:
    reason = event.get("reason")
    code = reason["code"] if isinstance(reason, dict) else ""
    return [*(_cell(event.get(name)) for name in EVENT_CSV[:-1]), code]


def job_wide(job: dict[str, Any], row: Row) -> Row:
    """The table's row with more columns before its last."""
    allocation = job["allocation"]
    return [
        *row[:-1],
        str(job["priority"]),
        str(job["attempt"]),
        allocation["isolation"] if allocation is not None else "-",
        render.instant(job["submitted_ms"])[:19],
        render.instant(job["started_ms"])[:19],
        row[-1],
    ]


def gpu_wide(gpu: dict[str, Any], row: Row) -> Row:
    power = gpu["power_milliwatts"]
    return [
        *row[:-1],
        f"{power // 1000}W" if power is not None else "-",
        _cell(gpu["numa_node"]) or "-",
        gpu["health"]["verdict"],
        gpu["uuid"],
        row[-1],
    ]
