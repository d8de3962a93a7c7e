"""What happened, in the past tense, and the fold that makes rows of it.

An event names the fields of the job's row that it changed, with their new values, so that the rows
are the fold of the events by construction: live state is changed by `fold` and nothing else.
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

from courtier.domain.health import Quarantine
from courtier.domain.lifecycle import check_change
from courtier.domain.workloads import Job

# kind -> what it tells. The closed set of the history.
EVENT_KINDS: dict[str, str] = {
    "submitted": "the job was accepted and is on disk",
    "held": "the job will not be placed until it is released",
    "released": "the hold is over",
    "changed": "the user changed the request or the order",
    "dependency_met": "one of the jobs that it waits for ended as asked",
    "eligible": "nothing but room keeps it from starting any more",
    "placed": "an allocation was given and a supervisor asked for",
    "start_revoked": "no supervisor took the start up; the allocation was taken back and nothing ran",
    "start_refused": "the machine refused the start; the allocation was taken back and nothing ran",
    "started": "the job's process runs",
    "time_limit_changed": "the time limit of the running job was changed",
    "stop_requested": "the job was asked to end",
    "exited": "the job's own process ended",
    "finished": "its tree is empty and the outcome is known",
    "cancelled": "it ended because somebody wanted it to",
    "lost": "it ended because its machine, its GPU or its supervisor did",
    "preempted": "it ended to make room",
    "requeued": "it waits again, as a new attempt",
    "gpu_error": "the driver reported an error (Xid) on a GPU, to the jobs that ran there",
    "gpu_quarantined": "a GPU was set aside: it takes no new work",
    "gpu_restored": "a GPU takes work again",
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, to a job or (job_id None) to the GPU `uuid`.

    `row` is the whole job, only where it begins to exist; `quarantine` stands where a GPU was set aside.
    """

    sequence: int
    at_ms: int
    kind: str
    job_id: int | None
    changes: Mapping[str, Any] = field(default_factory=dict)
    row: Job | None = None
    uuid: str | None = None
    quarantine: Quarantine | None = None


def folded(job: Job | None, event: Event) -> Job:
    """The row after the event. Raises IllegalChange when the lifecycle table has no such change."""
    if event.row is not None:
        if job is not None:
            raise ValueError(f"job {event.job_id} exists already")
        return event.row
    if job is None:
        raise ValueError(f"event {event.sequence} ({event.kind}) is of job {event.job_id}, which does not exist")
    if "state" in event.changes:
        check_change(job.state, event.changes["state"])
    return replace(job, **event.changes)


def fold(jobs: MutableMapping[int, Job], event: Event) -> None:
    """Applies one event to a table of rows; what happened to a GPU changes no job."""
    if event.job_id is not None:
        jobs[event.job_id] = folded(jobs.get(event.job_id), event)


def fold_devices(quarantines: MutableMapping[str, Quarantine], event: Event) -> None:
    """The same for the GPUs that are set aside."""
    if event.uuid is None:
        return
    if event.quarantine is not None:
        quarantines[event.uuid] = event.quarantine
    elif event.kind == "gpu_restored":
        quarantines.pop(event.uuid, None)
