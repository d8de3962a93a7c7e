"""One step while it is made: dependents are settled to the end of the chain, stops shorten, events count on."""

from hypothesis import given
from hypothesis import strategies as st

from courtier.domain.attempts import StopCause
from courtier.domain.lifecycle import ENDED, JobState
from courtier.domain.workloads import Dependency, DependencyKind
from makers import NOW, make_job, make_turn

S, K = JobState, DependencyKind


@given(st.lists(st.tuples(st.sampled_from(list(K)), st.integers(1, 99)), min_size=1, max_size=12), st.booleans())
def test_nobody_waits_for_a_job_that_has_ended(links: list[tuple[DependencyKind, int]], well: bool) -> None:
    jobs = [make_job(1, S.COMPLETING)]
    for number, (kind, back) in enumerate(links, start=2):
        first = 1 + back % (number - 1)
        jobs.append(make_job(number, eligible_ms=None, dependencies=(Dependency(kind, first),)))
    turn = make_turn(*jobs)
    turn.settle_dependents(turn.end("finished", jobs[0], S.COMPLETED if well else S.FAILED, None))
    for job in turn.state.jobs.values():
        if job.id == 1:
            continue
        for dependency in job.dependencies:
            ended = turn.state.jobs[dependency.job_id]
            assert ended.state not in ENDED or (job.state is S.CANCELLED and not dependency.holds(ended.state))
        assert (job.state is S.PENDING and not job.dependencies) == (job.eligible_ms is not None)
    assert [event.sequence for event in turn.events] == list(range(1, len(turn.events) + 1))


def test_two_dependencies_are_both_waited_for() -> None:
    waiting = make_job(3, eligible_ms=None, dependencies=(Dependency(K.AFTER_OK, 1), Dependency(K.AFTER_ANY, 2)))
    turn = make_turn(make_job(1, S.COMPLETING), make_job(2, S.COMPLETING), waiting)
    turn.settle_dependents(turn.end("finished", turn.state.jobs[1], S.COMPLETED, None))
    assert turn.state.jobs[3].eligible_ms is None
    turn.settle_dependents(turn.end("finished", turn.state.jobs[2], S.FAILED, None))
    assert turn.state.jobs[3].eligible_ms == turn.now


def test_a_met_dependency_does_not_release_a_hold_or_a_begin() -> None:
    after = (Dependency(K.AFTER_OK, 1),)
    held = make_job(2, S.HELD, dependencies=after)
    later = make_job(3, eligible_ms=None, dependencies=after, begin_ms=NOW + 10_000)
    turn = make_turn(make_job(1, S.COMPLETING), held, later)
    turn.settle_dependents(turn.end("finished", turn.state.jobs[1], S.COMPLETED, None))
    assert (turn.state.jobs[2].state, turn.state.jobs[2].eligible_ms) == (S.HELD, None)
    assert (turn.state.jobs[3].eligible_ms, turn.state.begins) == (None, {3: NOW + 10_000})


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8))
def test_stops_only_shorten(graces: list[int]) -> None:
    turn = make_turn(make_job(1, S.RUNNING))
    for grace_ms in graces:
        turn.stop(turn.state.jobs[1], StopCause.CANCEL, by="bob", grace_ms=grace_ms)
    sent = [command.grace_ms for command in turn.commands]  # type: ignore[union-attr]
    assert sent == sorted(set(sent), reverse=True)
    assert (sent[0], sent[-1]) == (graces[0], min(graces))
