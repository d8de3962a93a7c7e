"""Deadlines of a supervisor: one TERM at most, the kill only comes nearer, a limit counts from the start."""

import signal
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courtier.adapters.process import supervisor
from courtier.adapters.process.supervisor import Place, Supervisor
from courtier.domain.attempts import AttemptKey
from courtier.engine.ports import Launch

LAUNCH = Launch(
    key=AttemptKey(1, 1, "1"),
    argv=(b"true",),
    environment=(),
    directory=b"/",
    stdout_path=b"/dev/null",
    stderr_path=b"/dev/null",
    append_logs=False,
    log_bytes_max=1,
    time_limit_ms=None,
    grace_ms=1000,
    warn_signal=signal.SIGUSR1,
    warn_before_ms=500,
    warn_leader_only=False,
    cpus_milli=None,
    memory_bytes=None,
    interactive=False,
    terminal=False,
    umask=0,
)


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A supervisor without processes, the signals that it sent, and its clock."""
    sent: list[int] = []
    clock = [100.0]
    monkeypatch.setattr(supervisor, "signal_all", lambda _tree, number, _boot: sent.append(number))
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    made = Supervisor(LAUNCH, Place("/nowhere", "boot", "none", "mark"))
    yield made, sent, clock
    made._selector.close()


@given(graces=st.lists(st.integers(0, 50), min_size=1, max_size=6))
def test_one_term_and_a_kill_that_only_comes_nearer(graces: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        sent: list[int] = []
        patch.setattr(supervisor, "signal_all", lambda _tree, number, _boot: sent.append(number))
        patch.setattr(supervisor, "descendants", lambda _root, _boot: [])
        patch.setattr(supervisor.time, "monotonic", lambda: 100.0)
        made = Supervisor(LAUNCH, Place("/nowhere", "boot", "none", "mark"))
        for grace_ms in graces:
            made._end_tree(grace_ms)
        made._selector.close()
        assert made._kill_at == 100.0 + min(graces) / 1000
        assert sent == ([signal.SIGTERM] if graces[0] > 0 else [])


def test_a_limit_and_its_warning_count_from_the_start(one: Any) -> None:
    made, _, clock = one
    made._set_limit(2_000)
    assert (made._limit_at, made._warn_at) == (None, None)
    made._started = 99.0
    made._set_limit(2_000)
    assert (made._limit_at, made._warn_at) == (101.0, 100.5)
    clock[0] = 100.9
    made._set_limit(2_100)
    assert (made._limit_at, made._warn_at) == (pytest.approx(101.1), 100.9)
    made._set_limit(None)
    assert (made._limit_at, made._warn_at) == (None, None)
