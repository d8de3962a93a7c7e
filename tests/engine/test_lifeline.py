"""From the look of an attempt to the life of its job: idempotent, monotone, and blind to strangers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courtier.domain.attempts import AttemptPhase, AttemptStatus, StopCause
from courtier.domain.lifecycle import ENDED, HOLDING, JobState
from courtier.domain.workloads import Dependency, DependencyKind, RetryCause
from courtier.engine import lifeline
from courtier.engine.commands import CleanAttempt, RevokeAttempt, StartAttempt, StopAttempt
from courtier.engine.lifeline import attempt_reported
from makers import NOW, kinds, make_job, make_spec, make_status, make_turn, stale_key

S, P = JobState, AttemptPhase
STARTING = make_job(1, S.STARTING)
# The whole story of one attempt, as notices would tell it.
STORY = (
    make_status(STARTING, P.ABSENT),
    make_status(STARTING, P.CLAIMED),
    make_status(STARTING, P.RUNNING),
    make_status(STARTING, P.COMPLETING, exit_code=7),
    make_status(STARTING, P.ENDED, exit_code=7),
)


@given(st.lists(st.integers(0, 4), max_size=12))
def test_notices_lost_late_or_twice_tell_the_same_story(places: list[int]) -> None:
    turn = make_turn(STARTING)
    for place in places:
        attempt_reported(turn, STORY[place])
    attempt_reported(turn, STORY[4])
    assert kinds(turn) == ["started", "exited", "finished"]
    row = turn.state.jobs[1]
    assert (row.state, row.exit_code, row.started_ms, row.finished_ms) == (S.FAILED, 7, NOW + 10, NOW + 20)
    assert CleanAttempt(STARTING.attempt_key) in turn.commands


@given(st.sampled_from(list(AttemptPhase)), st.sampled_from([S.PENDING, S.STARTING, S.RUNNING, S.COMPLETING]))
def test_a_former_spawn_changes_no_row(phase: AttemptPhase, state: JobState) -> None:
    job = make_job(1, state, spawn=3)
    turn = make_turn(job)
    attempt_reported(turn, replace(make_status(job, phase, exit_code=0), key=stale_key(job)))
    assert turn.state.jobs[1] == job and not turn.events
    if phase is P.ABSENT:
        assert turn.commands == [RevokeAttempt(stale_key(job))]
    elif phase in (P.CLAIMED, P.RUNNING, P.COMPLETING):
        assert turn.commands == []
    else:
        assert turn.commands == [CleanAttempt(stale_key(job))]


def test_a_revoked_start_waits_again_with_its_place_in_the_queue() -> None:
    turn = make_turn(make_job(1, S.STARTING, eligible_ms=NOW, starts_refused=2))
    attempt_reported(turn, make_status(STARTING, P.REVOKED))
    row = turn.state.jobs[1]
    assert (row.state, row.allocation, row.eligible_ms, row.attempt, row.starts_refused) == (S.PENDING, None, NOW, 1, 2)
    assert turn.commands == [CleanAttempt(STARTING.attempt_key)]


def test_refused_starts_back_off_and_end() -> None:
    turn = make_turn(STARTING, start_backoff_ms=100, starts_refused_max=4)
    pauses = []
    for tries in range(1, 5):
        job = turn.state.jobs[1]
        attempt_reported(turn, make_status(job, P.REFUSED, error="disk full"))
        job = turn.state.jobs[1]
        assert job.starts_refused == tries
        assert job.reason is not None and "disk full" in job.reason.text
        if job.state is S.PENDING:
            assert job.eligible_ms is None
            pauses.append((job.begin_ms or 0) - turn.now)
            turn.emit("eligible", 1, eligible_ms=turn.now)
            lifeline.place(turn, turn.state.jobs[1], STARTING.allocation)
    assert pauses == [100, 200, 400]
    assert job.state is S.FAILED and job.reason.code == "start_refused"  # type: ignore[union-attr]


@pytest.mark.parametrize("phase", [P.REVOKED, P.REFUSED])
def test_a_cancelled_start_does_not_wait_again(phase: AttemptPhase) -> None:
    turn = make_turn(make_job(1, S.STARTING, stop_cause=StopCause.CANCEL, stop_by="bob"))
    attempt_reported(turn, make_status(STARTING, phase, error="x"))
    assert turn.state.jobs[1].state is S.CANCELLED


@pytest.mark.parametrize(
    ("retry_on", "retries", "shown", "attempt", "left"),
    [
        ({RetryCause.FAILED}, 2, {"exit_code": 1}, 2, 1),
        ({RetryCause.FAILED}, 0, {"exit_code": 1}, 1, 0),
        ({RetryCause.OOM}, 2, {"exit_code": 1}, 1, 2),
        ({RetryCause.FAILED}, 2, {"exit_code": 0}, 1, 2),
        (set(), 0, {"signal": 15, "stop_cause": StopCause.PREEMPT}, 2, 0),
        (set(RetryCause), 3, {"signal": 15, "stop_cause": StopCause.CANCEL}, 1, 3),
    ],
)
def test_what_is_tried_again(retry_on: set, retries: int, shown: dict, attempt: int, left: int) -> None:  # type: ignore[type-arg]
    job = make_job(1, S.RUNNING, spec=make_spec(retry_on=frozenset(retry_on)), retries_left=retries)
    turn = make_turn(job)
    attempt_reported(turn, make_status(job, P.ENDED, **shown))
    row = turn.state.jobs[1]
    assert (row.attempt, row.retries_left, row.state in ENDED) == (attempt, left, attempt == 1)
    if attempt == 2:
        former = (row.allocation, row.leader, row.started_ms, row.exit_code, row.signal, row.stop_cause, row.reason)
        assert former == (None,) * 7
        assert row.attempt_key != job.attempt_key


def test_an_end_settles_who_waits_and_a_retry_does_not() -> None:
    waiting = make_job(2, eligible_ms=None, dependencies=(Dependency(DependencyKind.AFTER_OK, 1),))
    after_that = make_job(3, eligible_ms=None, dependencies=(Dependency(DependencyKind.AFTER_ANY, 2),))
    for retries, states in ((0, (S.CANCELLED, S.PENDING)), (1, (S.PENDING, S.PENDING))):
        job = make_job(1, S.RUNNING, spec=make_spec(retry_on=frozenset({RetryCause.FAILED})), retries_left=retries)
        turn = make_turn(job, waiting, after_that)
        attempt_reported(turn, make_status(job, P.ENDED, exit_code=1))
        assert (turn.state.jobs[2].state, turn.state.jobs[3].state) == states
        assert (turn.state.jobs[3].eligible_ms is None) == (retries == 1)


def test_recovery_repeats_only_what_is_safe_to_repeat() -> None:
    stopping = make_job(2, S.RUNNING, stop_cause=StopCause.CANCEL, stop_grace_ms=0)
    turn = make_turn(STARTING, stopping, make_job(3, S.RUNNING), make_job(4))
    lifeline.recover(turn)
    assert turn.commands == [
        RevokeAttempt(STARTING.attempt_key),
        StopAttempt(stopping.attempt_key, StopCause.CANCEL, 0),
    ]
    assert not any(isinstance(command, StartAttempt) for command in turn.commands)


@pytest.mark.parametrize(("waited_ms", "revoked"), [(9_999, False), (10_000, True)])
def test_a_start_is_revoked_at_its_deadline(waited_ms: int, revoked: bool) -> None:
    turn = make_turn(STARTING, make_job(2, S.RUNNING), now=NOW + waited_ms, spawn_deadline_ms=10_000)
    lifeline.revoke_overdue(turn)
    assert turn.commands == ([RevokeAttempt(STARTING.attempt_key)] if revoked else [])


def test_a_vanished_start_never_becomes_a_second_start() -> None:
    turn = make_turn(STARTING)
    attempt_reported(turn, AttemptStatus(STARTING.attempt_key, P.VANISHED))
    assert turn.state.jobs[1].state is S.LOST
    assert not any(job.state in HOLDING for job in turn.state.jobs.values())
