"""What users ask: every request has one answer, whole or not at all."""

from typing import Any

import pytest

from courtier.domain.attempts import StopCause
from courtier.domain.lifecycle import ENDED, JobState
from courtier.domain.workloads import Dependency, DependencyKind, Request
from courtier.engine import requests
from courtier.engine.commands import LimitAttempt, SignalAttempt, StopAttempt
from courtier.engine.stimuli import ChangeAsked, HoldAsked, ReleaseAsked, RequeueAsked, SignalAsked, StopAsked
from courtier.engine.stimuli import SubmitAsked as Submit
from makers import NOW, kinds, make_job, make_spec, make_turn

S = JobState
ALL = tuple(S)


def asked(request: Request | None = None, **fields: Any) -> Submit:
    return Submit(1, fields.pop("spec", None) or make_spec(request), b"payload", **fields)


def refusal_of(reply: Any) -> str | None:
    return reply.refusal.code if reply.refusal is not None else None


def test_an_array_takes_a_number_of_its_own_and_one_for_each() -> None:
    turn = make_turn(make_job(4))
    reply = requests.submit(turn, asked(array=(3, 5, 9), array_limit=2))
    assert [(job.id, job.array_id, job.array_index, job.array_size) for job in reply.jobs] == [
        (6, 5, 3, 3),
        (7, 5, 5, 3),
        (8, 5, 9, 3),
    ]
    assert turn.state.next_id == 9
    assert kinds(turn) == ["submitted", "eligible"] * 3


def test_a_key_answers_with_the_job_that_has_it_of_that_user_only() -> None:
    turn = make_turn()
    first = requests.submit(turn, asked(spec=make_spec(key="k")))
    again = requests.submit(turn, asked(spec=make_spec(key="k")))
    other = requests.submit(turn, asked(spec=make_spec(key="k", user="bob")))
    assert (again.existing, [job.id for job in again.jobs]) == (True, [1])
    assert (first.existing, other.existing, other.jobs[0].id) == (False, False, 2)


def test_a_dry_run_leaves_nothing() -> None:
    turn = make_turn()
    reply = requests.submit(turn, asked(dry_run=True))
    assert reply.jobs and not turn.events and not turn.payloads and not turn.state.jobs and turn.state.next_id == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"array": (1, 2, 3)}, "array_too_large"),
        ({"array": (1, 2)}, "queue_full"),
        ({"dependencies": (Dependency(DependencyKind.AFTER_OK, 77),)}, "dependency_unknown"),
        ({"spec": make_spec(isolation="mig")}, "isolation_unavailable"),
        ({"request": Request(gpus=5)}, "gpus_exceed_inventory"),
        ({}, None),
    ],
)
def test_a_refused_submit_leaves_nothing(fields: dict[str, Any], code: str | None) -> None:
    turn = make_turn(make_job(1), make_job(2), array_size_max=2, jobs_active_max=3)
    reply = requests.submit(turn, asked(**fields))
    assert refusal_of(reply) == code
    assert bool(turn.events) == bool(turn.payloads) == (code is None)


@pytest.mark.parametrize(
    ("kind", "ended_as", "state", "eligible"),
    [
        (DependencyKind.AFTER_OK, S.COMPLETED, S.PENDING, True),
        (DependencyKind.AFTER_OK, S.FAILED, S.CANCELLED, False),
        (DependencyKind.AFTER_NOT_OK, S.FAILED, S.PENDING, True),
        (DependencyKind.AFTER_NOT_OK, S.COMPLETED, S.CANCELLED, False),
        (DependencyKind.AFTER_ANY, S.TIMEOUT, S.PENDING, True),
        (DependencyKind.AFTER_OK, None, S.PENDING, False),
    ],
)
def test_a_dependency_is_met_open_or_never(
    kind: DependencyKind, ended_as: JobState | None, state: JobState, eligible: bool
) -> None:
    turn = make_turn(*([make_job(7, S.RUNNING)] if ended_as is None else []))
    ended = {7: ended_as} if ended_as is not None else {}
    reply = requests.submit(turn, asked(dependencies=(Dependency(kind, 7),), ended=ended))
    row = turn.state.jobs[reply.jobs[0].id]
    assert (row.state, row.eligible_ms is not None) == (state, eligible)
    assert bool(row.dependencies) == (ended_as is None)


def test_begin_and_hold_keep_it_from_being_eligible() -> None:
    turn = make_turn()
    later = requests.submit(turn, asked(begin_ms=turn.now + 1)).jobs[0]
    due = requests.submit(turn, asked(begin_ms=turn.now)).jobs[0]
    held = requests.submit(turn, asked(hold=True)).jobs[0]
    found = [(turn.state.jobs[job.id].state, turn.state.jobs[job.id].eligible_ms) for job in (later, due, held)]
    assert found == [(S.PENDING, None), (S.PENDING, turn.now), (S.HELD, None)]
    requests.release(turn, ReleaseAsked(2, (held.id,)))
    assert turn.state.jobs[held.id].eligible_ms == turn.now


# verb -> state of the job -> refusal (None: served)
WAITING, STARTED = {S.PENDING, S.HELD}, {S.STARTING, S.RUNNING, S.COMPLETING}
VERBS: dict[str, tuple[Any, Any, set[JobState]]] = {
    "stop": (requests.stop, lambda: StopAsked(1, (1,), StopCause.CANCEL, "bob"), WAITING | STARTED),
    "signal": (requests.send_signal, lambda: SignalAsked(1, (1,), 10), {S.RUNNING, S.COMPLETING}),
    "hold": (requests.hold, lambda: HoldAsked(1, (1,)), WAITING),
    "release": (requests.release, lambda: ReleaseAsked(1, (1,)), WAITING),
    "requeue": (requests.requeue, lambda: RequeueAsked(1, (1,), "bob"), STARTED | ENDED),
    "change": (requests.change, lambda: ChangeAsked(1, (1,), {"priority": 3}), WAITING | STARTED),
    "change_cpus": (requests.change, lambda: ChangeAsked(1, (1,), {"cpus": 3}), WAITING),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", ALL)
def test_which_verb_serves_which_state(verb: str, state: JobState) -> None:
    handle, make, served = VERBS[verb]
    turn = make_turn()
    turn.state.load(make_job(1, state))
    reply = handle(turn, make())
    assert (reply.refusal is None) == (state in served)
    assert bool(reply.jobs) == (state in served)
    if state not in served:
        assert not turn.events and not turn.commands


def test_some_targets_served_is_no_refusal_and_none_is() -> None:
    turn = make_turn(make_job(1), make_job(2, S.RUNNING))
    assert [job.id for job in requests.hold(turn, HoldAsked(1, (9, 1, 2))).jobs] == [1]
    assert refusal_of(requests.hold(turn, HoldAsked(1, (9, 2)))) == "job_unknown"


def test_a_second_cancel_only_shortens() -> None:
    job = make_job(1, S.RUNNING, spec=make_spec(grace_ms=5_000))
    turn = make_turn(job)
    patient, now = (StopAsked(1, (1,), StopCause.CANCEL, "bob", skip_grace=skip) for skip in (False, True))
    for one in (patient, patient, now, now, patient):
        requests.stop(turn, one)
    requests.requeue(turn, RequeueAsked(1, (1,), "bob"))
    assert turn.commands == [StopAttempt(job.attempt_key, StopCause.CANCEL, grace) for grace in (5_000, 0)]
    assert kinds(turn) == ["stop_requested"] * 2


def test_a_running_job_takes_its_limit_at_once() -> None:
    job = make_job(1, S.RUNNING)
    turn = make_turn(job, make_job(2))
    reply = requests.change(turn, ChangeAsked(1, (1, 2), {"time_limit_ms": 5}))
    assert [one.spec.request.time_limit_ms for one in reply.jobs] == [5, 5]
    assert turn.commands == [LimitAttempt(job.attempt_key, 5)]
    assert kinds(turn) == ["time_limit_changed", "changed"]


def test_a_change_that_no_box_can_meet_is_refused_whole() -> None:
    turn = make_turn(make_job(1))
    assert refusal_of(requests.change(turn, ChangeAsked(1, (1,), {"cpus": 999, "priority": 9}))) == "cpus_exceed_box"
    assert turn.state.jobs[1].priority == 0 and not turn.events


def test_a_new_begin_is_waited_for() -> None:
    turn = make_turn(make_job(1, eligible_ms=NOW))
    requests.change(turn, ChangeAsked(1, (1,), {"begin_ms": turn.now + 50}))
    assert (turn.state.jobs[1].eligible_ms, turn.state.begins) == (None, {1: turn.now + 50})


def test_a_signal_goes_to_the_present_attempt() -> None:
    job = make_job(1, S.RUNNING, spawn=4)
    turn = make_turn(job)
    requests.send_signal(turn, SignalAsked(1, (1,), 12))
    assert turn.commands == [SignalAttempt(job.attempt_key, 12)]
