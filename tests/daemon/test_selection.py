"""What a listing means: filters, and live jobs in the order in which they would be served."""

from types import SimpleNamespace
from typing import Any

import pytest

from courtier.api.backend import JobQuery
from courtier.daemon.selection import choose
from courtier.domain.lifecycle import JobState
from makers import make_job, make_spec

S = JobState
LIVE = [
    make_job(1, priority=0),
    make_job(2, priority=9),
    make_job(3, S.RUNNING, spec=make_spec(user="bob")),
    make_job(4, S.HELD, priority=9),
    make_job(5, S.COMPLETING, spec=make_spec(name="eval")),
]
ENDED = [make_job(6, S.FAILED), make_job(7, S.COMPLETED, spec=make_spec(user="bob"))]


class Store:
    def ended_jobs(self, *, user: str | None, **_rest: Any) -> tuple[list[Any], None]:
        return [job for job in ENDED if user in (None, job.spec.user)], None


BROKER: Any = SimpleNamespace(
    loop=SimpleNamespace(state=SimpleNamespace(jobs={job.id: job for job in LIVE})),
    store=Store(),
    members=lambda number: [job for job in (*LIVE, *ENDED) if job.id == number],
)


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        (JobQuery(), [3, 5, 2, 4, 1]),
        (JobQuery(all=True), [6, 7, 3, 5, 2, 4, 1]),
        (JobQuery(user="bob"), [3]),
        (JobQuery(user="bob", all=True), [7, 3]),
        (JobQuery(name="eval"), [5]),
        (JobQuery(states=("pending", "held")), [2, 4, 1]),
        (JobQuery(states=("failed",)), [6]),
        (JobQuery(states=("failed", "running")), [6, 3]),
        (JobQuery(ids=(7, 1, 99)), [1]),
        (JobQuery(ids=(7, 1), all=True), [7, 1]),
        (JobQuery(ids=(1, 3), user="bob"), [3]),
    ],
)
def test_which_jobs_and_in_which_order(query: JobQuery, ids: list[int]) -> None:
    assert [job.id for job in choose(BROKER, query)] == ids
