"""What happened, in the past tense, and the fold that makes rows of it.

An event names the fields of the job's row that it changed, with their new values, so that the rows
are the fold of the events by construction: live state is changed by `fold` and nothing else.
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

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
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to one job. `row` is the whole job, only where it begins to exist."""

    sequence: int
    at_ms: int
    kind: str
    job_id: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    row: Job | None = None


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
    """Applies one event to a table of rows."""
    jobs[event.job_id] = folded(jobs.get(event.job_id), event)
