"""Laws of state: a refused step leaves no trace, the lifecycle has no dead end, plans do not depend on order."""

import copy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from courtier.domain.lifecycle import CHANGES, ENDED, IllegalChange, JobState, check_change
from courtier.domain.policy import Policy
from courtier.engine.loop import Loop
from courtier.engine.ports import PortError
from courtier.scheduler.cycle import schedule
from courtier.sim.store import MemoryStore
from courtier.sim.world import World

INDEXES = ("jobs", "queue", "holding", "array_members", "array_running", "dependents", "begins", "keys", "tenancy")


def indexes(loop: Loop) -> dict[str, object]:
    found = {name: copy.copy(getattr(loop.state, name)) for name in INDEXES}
    found["tenancy"] = {uuid: dict(tenants) for uuid, tenants in loop.state.tenancy.items() if tenants}
    found["queue"] = {key: list(ranks) for key, ranks in loop.state.queue.items()}
    for name in ("array_members", "dependents"):
        found[name] = {key: set(members) for key, members in getattr(loop.state, name).items()}
    return {**found, "ids": (loop.state.next_id, loop.state.next_sequence, loop.state.cpus_held)}


class RefusingStore(MemoryStore):
    """Refuses by a pattern, and compares the loop before and after each refusal."""

    def __init__(self, pattern: list[bool]) -> None:
        super().__init__()
        self.pattern = pattern
        self.refused = 0

    def commit(self, outcome: object) -> None:
        if self.pattern and self.pattern.pop():
            self.refused += 1
            raise PortError("store_full", "refused")
        super().commit(outcome)  # type: ignore[arg-type]


class WatchedLoop(Loop):
    """Checks that rollback restores every index to what it was before the step."""

    def step(self, stimuli: object, now: int):  # type: ignore[no-untyped-def]
        self.before = indexes(self)
        return super().step(stimuli, now)  # type: ignore[arg-type]

    def rollback(self) -> None:
        super().rollback()
        assert indexes(self) == self.before


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.booleans(), max_size=60))
def test_a_refused_step_leaves_no_trace(seed: int, pattern: list[bool]) -> None:
    world = World(seed, loop_class=WatchedLoop, store=RefusingStore(pattern))
    world.submit_some(8)
    world.run(world.now + 30_000)
    assert world.loop is not None


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_the_order_of_the_queue(seed: int, shuffled) -> None:  # type: ignore[no-untyped-def]
    world = World(seed)
    world.submit_some(8)
    world.run(world.now + 2_000)
    assert world.loop is not None
    for device in world.box.devices:
        world.loop.state.tenancy.pop(device.uuid, None)
    snapshot = world.loop.snapshot()
    pending = list(snapshot.pending)
    shuffled.shuffle(pending)
    plan = schedule(snapshot, Policy(), world.now)
    assert schedule(replace(snapshot, pending=tuple(pending)), Policy(), world.now) == plan


def test_every_state_leads_to_an_end() -> None:
    for state in JobState:
        seen, todo = set(), [state]
        while todo:
            here = todo.pop()
            if here not in seen:
                seen.add(here)
                todo += CHANGES[here]
        assert seen & ENDED


@pytest.mark.parametrize("state", sorted(ENDED))
def test_an_end_leads_only_back_to_the_queue(state: JobState) -> None:
    assert CHANGES[state] == {JobState.PENDING}
    with pytest.raises(IllegalChange):
        check_change(state, JobState.RUNNING)
