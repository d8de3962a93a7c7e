"""The promises of engine.ports.Runtime, kept by real supervisors and by the simulator's alike."""

import signal
from collections.abc import Iterator
from itertools import count

import pytest
from runtimes import (
    DRIVERS,
    ENDS_BY_ITSELF_ON_TERM,
    IGNORES_TERM,
    LEAVES_A_CHILD,
    LEAVES_A_STUBBORN_CHILD,
    SLEEPS,
    SLEEPS_MS,
    TAKES_400_MS,
    Driver,
    Program,
    RealDriver,
    dies_of,
    exits,
)

from conftest import alive, wait_until
from courtier.adapters.process.supervisor import CONTROL_SECONDS
from courtier.domain.attempts import AttemptKey, AttemptPhase, AttemptStatus, StopCause
from courtier.sim.processes import Behaviour

P = AttemptPhase
LONG_MS = 500_000
_numbers = count(1)


@pytest.fixture(scope="module", params=sorted(DRIVERS))
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    made = DRIVERS[request.param](tmp_path_factory.mktemp("runtime"))
    yield made
    made.close()


@pytest.fixture
def key() -> AttemptKey:
    return new_key()


def new_key() -> AttemptKey:
    return AttemptKey(next(_numbers), 1, "1")


def reports_of(driver: Driver, key: AttemptKey) -> list[AttemptStatus]:
    return [status for status in driver.reports if status.key == key]


def test_a_key_started_again_and_again_is_claimed_once(driver: Driver, key: AttemptKey) -> None:
    with driver.claims_held():
        driver.start(key, exits(0))
        driver.start(key, exits(0))
    ended = driver.until_phase(key, P.ENDED)
    driver.start(key, exits(0))
    driver.settle(new_key())
    assert driver.starts_of(key) == 1
    assert driver.observe(key) == ended


def test_a_stop_before_the_start_keeps_it_from_starting(driver: Driver, key: AttemptKey) -> None:
    with driver.claims_held():
        driver.start(key, SLEEPS)
        driver.stop(key, StopCause.CANCEL, grace_ms=LONG_MS)
        assert driver.observe(key).phase is P.ABSENT
    ended = driver.until_phase(key, P.ENDED)
    assert (ended.exit_code, ended.signal, ended.stop_cause) == (None, None, StopCause.CANCEL)
    assert (ended.started_ms, ended.leader) == (None, None)
    assert driver.starts_of(key) == 0


def test_a_stop_ends_it_by_term_within_the_grace(driver: Driver, key: AttemptKey) -> None:
    begun = driver.started(key, SLEEPS)
    asked_ms = driver.now_ms()
    driver.stop(key, StopCause.PREEMPT, grace_ms=LONG_MS)
    ended = driver.until_phase(key, P.ENDED)
    assert (ended.exit_code, ended.signal, ended.stop_cause) == (None, signal.SIGTERM, StopCause.PREEMPT)
    assert (ended.started_ms, ended.leader) == (begun.started_ms, begun.leader)
    assert ended.finished_ms is not None and ended.finished_ms < asked_ms + LONG_MS


def test_a_stop_without_grace_kills(driver: Driver, key: AttemptKey) -> None:
    driver.started(key, ENDS_BY_ITSELF_ON_TERM)
    driver.stop(key, StopCause.CANCEL, grace_ms=0)
    ended = driver.until_phase(key, P.ENDED)
    assert (ended.exit_code, ended.signal, ended.stop_cause) == (None, signal.SIGKILL, StopCause.CANCEL)


def test_what_ignores_term_is_killed_after_the_grace_and_not_before(driver: Driver, key: AttemptKey) -> None:
    driver.started(key, IGNORES_TERM)
    asked_ms = driver.now_ms()
    driver.stop(key, StopCause.CANCEL, grace_ms=150)
    ended = driver.until_phase(key, P.ENDED)
    assert ended.signal == signal.SIGKILL
    assert ended.finished_ms is not None and 149 <= ended.finished_ms - asked_ms < LONG_MS


def test_an_answer_to_term_keeps_its_exit_code_and_the_cause(driver: Driver, key: AttemptKey) -> None:
    driver.started(key, ENDS_BY_ITSELF_ON_TERM)
    driver.stop(key, StopCause.CANCEL, grace_ms=LONG_MS)
    ended = driver.until_phase(key, P.ENDED)
    assert (ended.exit_code, ended.signal, ended.stop_cause) == (3, None, StopCause.CANCEL)


@pytest.mark.parametrize("graces", [(LONG_MS, 0), (0, LONG_MS), (LONG_MS, 50, LONG_MS)], ids=str)
def test_repeated_stops_only_shorten_and_the_first_cause_stays(
    driver: Driver, key: AttemptKey, graces: tuple[int, ...]
) -> None:
    driver.started(key, IGNORES_TERM)
    asked_ms = driver.now_ms()
    with driver.supervisor_held(key):
        for grace_ms, cause in zip(graces, StopCause, strict=False):
            driver.stop(key, cause, grace_ms=grace_ms)
    ended = driver.until_phase(key, P.ENDED)
    assert (ended.signal, ended.stop_cause) == (signal.SIGKILL, next(iter(StopCause)))
    assert ended.finished_ms is not None and ended.finished_ms < asked_ms + LONG_MS


def test_what_it_left_behind_is_stopped_and_its_own_end_counts(driver: Driver, key: AttemptKey) -> None:
    driver.start(key, LEAVES_A_STUBBORN_CHILD)
    completing = driver.until_phase(key, P.COMPLETING)
    assert (completing.exit_code, completing.finished_ms) == (7, None)
    driver.stop(key, StopCause.CANCEL, grace_ms=0)
    ended = driver.until_phase(key, P.ENDED)
    assert (ended.exit_code, ended.signal, ended.stop_cause) == (7, None, None)
    assert driver.living(key) == 0


def test_a_stop_after_the_end_changes_nothing(driver: Driver, key: AttemptKey) -> None:
    driver.start(key, exits(0))
    ended = driver.until_phase(key, P.ENDED)
    driver.stop(key, StopCause.CANCEL, grace_ms=0)
    driver.set_time_limit(key, 1)
    driver.settle(new_key())
    assert driver.observe(key) == ended == driver.revoke(key)
    assert (ended.exit_code, ended.stop_cause) == (0, None)


def test_a_stop_of_the_unknown_is_no_error_and_starts_nothing(driver: Driver, key: AttemptKey) -> None:
    driver.stop(key, StopCause.CANCEL, grace_ms=0)
    driver.set_time_limit(key, 1)
    assert driver.observe(key) == AttemptStatus(key, P.REVOKED)


def test_there_is_nothing_to_signal_before_and_after_it_runs(driver: Driver, key: AttemptKey) -> None:
    assert not driver.signal(key, signal.SIGUSR1)
    with driver.claims_held():
        driver.start(key, exits(0))
        assert not driver.signal(key, signal.SIGUSR1)
    driver.until_phase(key, P.ENDED)
    assert not driver.signal(key, signal.SIGUSR1)
    assert not driver.signal(key, signal.SIGUSR1, leader_only=True)


@pytest.mark.parametrize("leader_only", [False, True])
def test_a_signal_reaches_what_runs_and_is_no_stop(driver: Driver, key: AttemptKey, leader_only: bool) -> None:
    driver.started(key, SLEEPS)
    assert driver.signal(key, signal.SIGUSR2, leader_only=leader_only)
    ended = driver.until_phase(key, P.ENDED)
    assert (ended.exit_code, ended.signal, ended.stop_cause) == (None, signal.SIGUSR2, None)


def test_a_revoked_start_is_never_claimed(driver: Driver, key: AttemptKey) -> None:
    with driver.claims_held():
        driver.start(key, exits(0))
        assert driver.revoke(key) == AttemptStatus(key, P.REVOKED)
        assert driver.revoke(key) == AttemptStatus(key, P.REVOKED)
        driver.start(key, exits(0))
    driver.start(key, exits(0))
    driver.settle(new_key())
    assert driver.observe(key) == AttemptStatus(key, P.REVOKED)
    assert driver.starts_of(key) == 0


def test_a_key_revoked_before_it_was_asked_for_cannot_be_started(driver: Driver, key: AttemptKey) -> None:
    assert driver.revoke(key) == AttemptStatus(key, P.REVOKED)
    driver.start(key, exits(0))
    driver.settle(new_key())
    assert driver.observe(key) == AttemptStatus(key, P.REVOKED)
    assert driver.starts_of(key) == 0


def test_a_revoked_start_that_was_cleaned_is_not_claimed_either(driver: Driver, key: AttemptKey) -> None:
    with driver.claims_held():
        driver.start(key, exits(0))
        driver.revoke(key)
        driver.clean(key)
    driver.settle(new_key())
    assert driver.observe(key).phase is P.REVOKED
    assert driver.starts_of(key) == 0


def test_revoking_what_was_claimed_says_what_is_there_and_harms_nothing(driver: Driver, key: AttemptKey) -> None:
    running = driver.started(key, ENDS_BY_ITSELF_ON_TERM)
    assert driver.revoke(key) == running == driver.observe(key)
    assert driver.signal(key, signal.SIGTERM)
    ended = driver.until_phase(key, P.ENDED)
    assert (ended.exit_code, ended.stop_cause) == (3, None)
    assert driver.revoke(key) == ended
    assert driver.starts_of(key) == 1


def test_the_unknown_is_revoked_and_the_unclaimed_absent(driver: Driver, key: AttemptKey) -> None:
    assert driver.observe(key) == AttemptStatus(key, P.REVOKED)
    with driver.claims_held():
        driver.start(key, exits(0))
        assert driver.observe(key) == AttemptStatus(key, P.ABSENT)
    driver.until_phase(key, P.ENDED)


@pytest.mark.parametrize("code", [0, 1, 7, 126, 127, 255])
def test_an_exit_code_is_exact(driver: Driver, key: AttemptKey, code: int) -> None:
    driver.start(key, exits(code))
    ended = driver.until_phase(key, P.ENDED)
    assert (ended.exit_code, ended.signal, ended.stop_cause, ended.error) == (code, None, None, None)
    assert ended.started_ms is not None and ended.finished_ms is not None and ended.started_ms <= ended.finished_ms


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL, signal.SIGSEGV])
def test_a_signal_that_ended_it_is_exact(driver: Driver, key: AttemptKey, number: int) -> None:
    driver.start(key, dies_of(number))
    ended = driver.until_phase(key, P.ENDED)
    assert (ended.exit_code, ended.signal, ended.stop_cause) == (None, number, None)


def test_a_time_limit_ends_it_from_its_start_on(driver: Driver, key: AttemptKey) -> None:
    driver.start(key, SLEEPS, time_limit_ms=100)
    ended = driver.until_phase(key, P.ENDED)
    assert (ended.signal, ended.stop_cause) == (signal.SIGTERM, StopCause.TIME_LIMIT)
    assert ended.started_ms is not None and ended.finished_ms is not None
    assert 99 <= ended.finished_ms - ended.started_ms < LONG_MS


def test_a_time_limit_kills_after_the_grace(driver: Driver, key: AttemptKey) -> None:
    driver.started(key, IGNORES_TERM, time_limit_ms=LONG_MS, grace_ms=50)
    driver.set_time_limit(key, 1)
    ended = driver.until_phase(key, P.ENDED)
    assert (ended.signal, ended.stop_cause) == (signal.SIGKILL, StopCause.TIME_LIMIT)


@pytest.mark.parametrize("before_ms", [None, LONG_MS])
def test_a_limit_set_on_what_runs_counts_from_its_start(driver: Driver, key: AttemptKey, before_ms: int | None) -> None:
    begun = driver.started(key, SLEEPS, time_limit_ms=before_ms)
    assert begun.started_ms is not None
    driver.set_time_limit(key, 1)
    ended = driver.until_phase(key, P.ENDED)
    assert (ended.signal, ended.stop_cause) == (signal.SIGTERM, StopCause.TIME_LIMIT)


@pytest.mark.parametrize("after_ms", [None, LONG_MS])
def test_a_limit_that_was_lifted_ends_nothing(driver: Driver, key: AttemptKey, after_ms: int | None) -> None:
    with driver.claims_held():
        driver.start(key, TAKES_400_MS, time_limit_ms=200)
        driver.set_time_limit(key, after_ms)
    ended = driver.until_phase(key, P.ENDED)
    assert (ended.exit_code, ended.stop_cause) == (4, None)


def test_a_dead_supervisor_leaves_nothing_alive(driver: Driver, key: AttemptKey) -> None:
    begun = driver.started(key, LEAVES_A_CHILD)
    assert driver.living(key) > 0
    driver.kill_supervisor(key)
    lost = driver.until_phase(key, P.VANISHED)
    assert driver.living(key) == 0
    assert (lost.exit_code, lost.signal, lost.finished_ms) == (None, None, None)
    assert (lost.started_ms, lost.leader, lost.supervisor) == (begun.started_ms, begun.leader, begun.supervisor)
    driver.stop(key, StopCause.CANCEL, grace_ms=0)
    assert not driver.signal(key, signal.SIGTERM)
    assert driver.observe(key) == lost == driver.revoke(key)


def test_cleaning_forgets_and_may_be_repeated(driver: Driver, key: AttemptKey) -> None:
    driver.start(key, exits(0))
    driver.until_phase(key, P.ENDED)
    for _ in range(2):
        driver.clean(key)
        assert driver.observe(key) == AttemptStatus(key, P.REVOKED)
        assert driver.revoke(key) == AttemptStatus(key, P.REVOKED)
        assert not driver.signal(key, signal.SIGTERM)
    driver.clean(new_key())


ORDER = (P.ABSENT, P.CLAIMED, P.RUNNING, P.COMPLETING, P.ENDED)


def test_reports_go_forward_and_the_last_is_what_is_seen(driver: Driver, key: AttemptKey) -> None:
    driver.start(key, exits(7))
    ended = driver.until_phase(key, P.ENDED)
    driver.until(lambda: reports_of(driver, key)[-1:] == [ended], "the report of the end")
    driver.settle(new_key())
    reports = reports_of(driver, key)
    places = [ORDER.index(status.phase) for status in reports]
    assert places == sorted(places)
    assert [status for status in reports if status.phase is P.ENDED] == [ended] * places.count(4)
    assert reports[-1] == driver.observe(key)


def test_every_end_is_reported_unasked(driver: Driver) -> None:
    ended, lost = new_key(), new_key()
    driver.started(lost, SLEEPS)
    driver.start(ended, exits(0))
    driver.kill_supervisor(lost)
    for key, phase in ((ended, P.ENDED), (lost, P.VANISHED)):
        driver.until(lambda k=key, p=phase: any(s.phase is p for s in reports_of(driver, k)), f"the report of {phase}")


def test_a_start_that_the_machine_refuses_says_why_and_ran_nothing(driver: Driver, key: AttemptKey) -> None:
    driver.start(key, exits(0), bad_log=True)
    refused = driver.until_phase(key, P.REFUSED)
    assert refused.error
    assert refused == AttemptStatus(key, P.REFUSED, error=refused.error)
    driver.until(lambda: refused in reports_of(driver, key), "the report of the refusal")
    driver.start(key, exits(0))
    driver.settle(new_key())
    assert driver.observe(key) == refused
    assert driver.starts_of(key) == 0


# What only real processes have ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDriver]:
    made = RealDriver(tmp_path_factory.mktemp("real"))
    yield made
    made.close()


def test_traces_on_disk_are_known_until_they_are_cleaned(real: RealDriver) -> None:
    ended, revoked = new_key(), new_key()
    real.start(ended, exits(0))
    real.until_phase(ended, P.ENDED)
    real.revoke(revoked)
    assert {ended, revoked} <= set(real.runtime.attempts_on_disk())
    log = real.folder / str(ended) / "log"
    for key in (ended, revoked):
        real.clean(key)
    assert not {ended, revoked} & set(real.runtime.attempts_on_disk())
    assert log.exists()


def test_the_warning_comes_once_whatever_else_is_wished(real: RealDriver, key: AttemptKey) -> None:
    counts = Program(
        "trap 'echo warned' USR1; trap '' TERM; echo ready; while :; do sleep 0.01; done", Behaviour(SLEEPS_MS)
    )
    warned = {"warn_signal": int(signal.SIGUSR1), "warn_before_ms": LONG_MS, "warn_leader_only": True}
    real.started(key, counts, time_limit_ms=None, **warned)
    real.set_time_limit(key, LONG_MS)
    real.until(lambda: b"warned" in real.log_of(key), "the warning")
    real.stop(key, StopCause.CANCEL, grace_ms=300)
    real.until_phase(key, P.ENDED)
    assert real.log_of(key).count(b"warned") == 1


def test_a_wish_is_heard_at_once_and_not_at_the_next_look(real: RealDriver) -> None:
    waited_ms = []
    for key in (new_key(), new_key(), new_key()):
        real.started(key, ENDS_BY_ITSELF_ON_TERM)  # its word came through the supervisor's loop
        asked_ms = real.now_ms()
        real.stop(key, StopCause.CANCEL, grace_ms=LONG_MS)
        waited_ms.append((real.until_phase(key, P.ENDED).finished_ms or 0) - asked_ms)
    # The best of three, since the machine may be busy; without the poke none is near it.
    assert min(waited_ms) < CONTROL_SECONDS * 1000 / 2


def test_a_dead_supervisor_takes_its_leader_along_whoever_else_is_held_up(real: RealDriver, key: AttemptKey) -> None:
    leader = real.started(key, LEAVES_A_CHILD).leader
    assert leader is not None
    with real.claims_held():
        real.kill_supervisor(key)
        wait_until(lambda: not alive(leader.pid), "the leader's death without a guardian")


def test_the_runtime_sees_a_death_and_empties_the_tree_without_a_guardian(real: RealDriver, key: AttemptKey) -> None:
    real.started(key, LEAVES_A_CHILD)
    with real.claims_held():
        tree = real.runtime.processes_of(key)
        assert len(tree) >= 2
        real.kill_supervisor(key)
        real.until(lambda: any(s.phase is P.VANISHED for s in reports_of(real, key)), "the report of the death")
        assert not any(alive(process.pid) for process in tree)
