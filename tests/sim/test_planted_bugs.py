"""Five bugs planted on purpose: a checker that cannot find them is no checker."""

from collections.abc import Sequence
from typing import Any

import pytest

from courtier.domain.workloads import Job
from courtier.engine import lifeline
from courtier.engine.commands import StartAttempt
from courtier.engine.loop import Loop, Outcome
from courtier.engine.state import State
from courtier.engine.turn import Turn
from courtier.sim.main import Run
from courtier.sim.store import MemoryStore

SEEDS = 120


def laws_broken(make: Any) -> set[str]:
    """Names of the laws that some seed finds broken."""
    found = set()
    for seed in range(SEEDS):
        violation = make(seed).violation
        if violation is not None:
            found.add(violation.law)
            break
    return found


class LosesWakeups(Loop):
    """Decides on submits only: room that comes back wakes nobody."""

    def _place(self, turn: Turn) -> None:
        if any(event.row is not None for event in turn.events):
            super()._place(turn)


def test_a_lost_wakeup_is_found() -> None:
    assert laws_broken(lambda seed: Run(seed, loop_class=LosesWakeups)) == {"lost_wakeup"}


def test_a_double_start_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_again(turn: Turn) -> None:
        for job in list(turn.state.holding.values()):
            if job.state.value == "starting":
                again = turn.emit("placed", job.id, spawn=job.spawn + 1)
                turn.commands.append(StartAttempt(again))

    monkeypatch.setattr(lifeline, "recover", start_again)
    assert laws_broken(Run) == {"double_start"}


def test_a_leaked_gpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    index_holding = State._index_holding

    def leak(self: State, job: Job, *, present: bool) -> None:
        kept = {uuid: dict(tenants) for uuid, tenants in self.tenancy.items()}
        index_holding(self, job, present=present)
        if not present and job.id % 3 == 0:
            self.tenancy = kept

    monkeypatch.setattr(State, "_index_holding", leak)
    assert laws_broken(Run) == {"gpu_leaked"}


class ForgetsIds(MemoryStore):
    """Counts on from the jobs that are still active."""

    def load(self) -> tuple[Sequence[Job], int, int]:
        active, _, next_sequence = super().load()
        return active, max((job.id for job in active), default=0) + 1, next_sequence


def test_an_id_used_again_is_found() -> None:
    assert laws_broken(lambda seed: Run(seed, store=ForgetsIds())) == {"id_reused"}


class LosesEvents(MemoryStore):
    """Keeps a step's rows, and not always its last event."""

    def commit(self, outcome: Outcome) -> None:
        before = len(self.events)
        super().commit(outcome)
        if len(self.events) > before and self.events[-1].kind == "exited":
            self.events.pop()


def test_a_lost_event_is_found() -> None:
    assert laws_broken(lambda seed: Run(seed, store=LosesEvents())) == {"event_lost"}
