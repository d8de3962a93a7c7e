"""Which jobs a listing means: the filters of `ps`. Live jobs in the order in which they would be served."""

from courtier.api.backend import JobQuery
from courtier.daemon.broker import Broker
from courtier.domain.lifecycle import ENDED, HOLDING, JobState
from courtier.domain.workloads import Job

# Ended jobs that a listing with `all` goes back over.
ENDED_MAX = 10_000


def choose(broker: Broker, query: JobQuery) -> list[Job]:
    """Started jobs first, then the queue by priority and number; ended ones, where asked for, before both."""
    if query.ids:
        jobs = [job for number in query.ids for job in broker.members(number)]
        return [job for job in jobs if (query.all or job.state not in ENDED) and _matches(job, query)]
    live = [job for job in broker.loop.state.jobs.values() if _matches(job, query)]
    live.sort(key=lambda job: (job.state not in HOLDING, -job.priority, job.id))
    wants_ended = query.all or any(JobState(state) in ENDED for state in query.states or ())
    if not wants_ended:
        return live
    ended, _ = broker.store.ended_jobs(since_ms=None, user=query.user, states=None, name=query.name, limit=ENDED_MAX)
    return [job for job in ended if _matches(job, query)] + live


def _matches(job: Job, query: JobQuery) -> bool:
    if query.states and job.state.value not in query.states:
        return False
    if query.user is not None and job.spec.user != query.user:
        return False
    return query.name is None or job.spec.name == query.name
