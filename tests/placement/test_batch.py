"""Laws of placement over a fleet: legal, work-conserving, the same by both paths, and blind to names and order."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from courtier.placement import kernels
from courtier.placement.batch import Batch, decide
from courtier.placement.cuttingstock import best_pattern, share_values
from courtier.placement.demand import ONE, demand_of, residual_prices, shares_of
from courtier.placement.fleet import ABSENT, Fleet, Kind
from courtier.placement.weights import POLICIES, SCORERS, sigmoid_steps, weighted
from courtier.sim.openb import after

MODELS = ("A", "B", "C")
WIDTH = 4


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    nodes = draw(st.integers(1, 6))
    gpus = np.full((nodes, WIDTH), ABSENT, dtype=np.int64)
    for node in range(nodes):
        for gpu in range(draw(st.integers(0, WIDTH))):
            gpus[node, gpu] = draw(st.sampled_from([1000, 1000, 1000, 500, 0]))

    def column(strategy: st.SearchStrategy[int]) -> np.ndarray:
        return np.array([draw(strategy) for _ in range(nodes)], dtype=np.int64)

    cpus = st.sampled_from([4_000, 16_000, 96_000, 128_000])
    return Fleet(MODELS, column(cpus), column(st.sampled_from([1 << 14, 1 << 18])), gpus, column(st.integers(0, 2)))


@st.composite
def kinds(draw: st.DrawFn) -> tuple[Kind, ...]:
    found = []
    for _ in range(draw(st.integers(1, 6))):
        gpus = draw(st.integers(0, 3))
        milli = 0 if gpus == 0 else 1000
        if gpus == 1:
            milli = draw(st.sampled_from([1000, 810, 470, 190, 333]))
        models = draw(st.sampled_from([None, None, ("A",), ("A", "B"), ("Z",)]))
        found.append(
            Kind(draw(st.sampled_from([0, 1_000, 3_152, 11_300])), draw(st.integers(0, 1 << 13)), gpus, milli, models)
        )
    return tuple(found)


def orders(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, count - 1), min_size=1, max_size=25)


cases = st.tuples(fleets(), kinds()).flatmap(
    lambda case: st.tuples(st.just(case[0]), st.just(case[1]), orders(len(case[1])))
)
policies = st.sampled_from(sorted(POLICIES))


def run(fleet: Fleet, table: tuple[Kind, ...], order: list[int], policy: str, *, fast: bool = False) -> Batch:
    demand = demand_of([table[number] for number in order], fleet.models)
    numbers = np.array(order, dtype=np.int64)
    return decide(fleet, table, numbers, demand, POLICIES[policy], seed=5, kernels=kernels if fast else None)


def fits(fleet: Fleet, node: int, kind: Kind) -> bool:
    """By the protocol's own words."""
    if fleet.cpu_milli_free[node] < kind.cpu_milli or fleet.memory_mib_free[node] < kind.memory_mib:
        return False
    if kind.gpus == 0:
        return True
    if kind.models is not None and fleet.models[fleet.model[node]] not in kind.models:
        return False
    return int((fleet.gpu_milli_free[node] >= kind.gpu_milli).sum()) >= kind.gpus


@given(cases, policies)
@settings(max_examples=150)
def test_what_fits_is_placed_within_what_is_free_and_nothing_else_is(
    case: tuple[Fleet, tuple[Kind, ...], list[int]], policy: str
) -> None:
    fleet, table, order = case
    batch = run(fleet, table, order, policy)
    for place, number in enumerate(order):
        kind, node, mask = table[number], int(batch.node[place]), int(batch.gpus[place])
        possible = [row for row in range(len(fleet)) if fits(fleet, row, kind)]
        assert (node in possible) if possible else node == -1
        assert mask.bit_count() == (kind.gpus if node >= 0 else 0)
        if node >= 0:
            taken = [gpu for gpu in range(WIDTH) if mask >> gpu & 1]
            assert all(fleet.gpu_milli_free[node, gpu] >= kind.gpu_milli for gpu in taken)
        one = Batch(batch.node[place : place + 1], batch.gpus[place : place + 1])
        fleet = after(fleet, table, np.array([number], dtype=np.int64), one)
        assert (fleet.cpu_milli_free >= 0).all() and (fleet.memory_mib_free >= 0).all()
        assert (fleet.gpu_milli_free >= ABSENT).all()


@given(cases, policies)
@settings(max_examples=150)
def test_both_paths_agree_to_the_last_decision(case: tuple[Fleet, tuple[Kind, ...], list[int]], policy: str) -> None:
    plain, fast = run(*case, policy), run(*case, policy, fast=True)
    assert plain.node.tolist() == fast.node.tolist()
    assert plain.gpus.tolist() == fast.gpus.tolist()


@given(cases, policies)
@settings(max_examples=60)
def test_a_decision_changes_nothing_that_it_was_given(
    case: tuple[Fleet, tuple[Kind, ...], list[int]], policy: str
) -> None:
    fleet, table, order = case
    before = [fleet.cpu_milli_free.copy(), fleet.memory_mib_free.copy(), fleet.gpu_milli_free.copy()]
    first = run(fleet, table, order, policy, fast=True)
    again = run(fleet, table, order, policy)
    assert all(
        (a == b).all()
        for a, b in zip(before, [fleet.cpu_milli_free, fleet.memory_mib_free, fleet.gpu_milli_free], strict=True)
    )
    assert first.node.tolist() == again.node.tolist()


@given(cases, st.sampled_from(["courtier", "fgd", "bestfit"]))
@settings(max_examples=60)
def test_models_by_other_names_and_kinds_in_another_order_change_nothing(
    case: tuple[Fleet, tuple[Kind, ...], list[int]], policy: str
) -> None:
    fleet, table, order = case
    names = {"A": "zeta", "B": "alpha", "C": "mid", "Z": "none"}
    renamed = replace(fleet, models=tuple(names[name] for name in fleet.models))
    turned = tuple(
        replace(kind, models=tuple(names[name] for name in kind.models) if kind.models else None)
        for kind in reversed(table)
    )
    demand = demand_of([table[number] for number in order], fleet.models)
    other = [len(table) - 1 - number for number in order]
    one = decide(fleet, table, np.array(order), demand, POLICIES[policy])
    two = decide(renamed, turned, np.array(other), demand, POLICIES[policy])
    assert one.node.tolist() == two.node.tolist()
    assert one.gpus.tolist() == two.gpus.tolist()


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=40))
def test_shares_are_whole_and_sum_to_all(counts: list[int]) -> None:
    shares = shares_of(counts)
    assert sum(shares) == ONE
    assert all(
        abs(share * sum(counts) - count * ONE) <= sum(counts) for share, count in zip(shares, counts, strict=True)
    )


@given(st.dictionaries(st.integers(1, 1000), st.integers(1, 500), min_size=1, max_size=7))
@settings(max_examples=60)
def test_share_prices_are_the_optimal_duals(demand: dict[int, int]) -> None:
    sizes = sorted(demand)
    values = share_values(sizes, [demand[size] for size in sizes])
    assert all(value >= 0 for value in values)
    # Dual feasible: no filling of a GPU is worth more than the GPU.
    assert best_pattern(sizes, values)[1] <= 1
    # And worth at least what the shares need at the very least.
    bound = sum(Fraction(size * count, 1000) for size, count in demand.items())
    assert sum(value * demand[size] for size, value in zip(sizes, values, strict=True)) >= bound


def test_the_best_pattern_is_the_best_of_all() -> None:
    sizes, values = [190, 333, 470, 810], [Fraction(1, 7), Fraction(2, 5), Fraction(1, 2), Fraction(5, 6)]
    every = product(range(6), range(4), range(3), range(2))
    legal = [p for p in every if sum(n * size for n, size in zip(p, sizes, strict=True)) <= 1000]
    worth = max(sum((n * value for n, value in zip(p, values, strict=True)), Fraction(0)) for p in legal)
    assert best_pattern(sizes, values)[1] == worth


def test_prices_never_fall_with_room() -> None:
    table = residual_prices([190, 810], [Fraction(1, 5), Fraction(4, 5)])
    assert (np.diff(table) >= 0).all()
    assert table[189] == 0 and table[1000] == 1000 * ONE


def test_sigmoid_steps_are_where_the_score_changes() -> None:
    import math

    steps = sigmoid_steps()
    assert len(steps) == 99 and (np.diff(steps) > 0).all()
    assert steps[49] == 0
    for score in (1, 30, 50, 73, 99):
        x = int(steps[score - 1]) / ONE / 1000
        assert abs(100 / (1 + math.exp(-x)) - score) < 1e-6


def test_policies_are_data() -> None:
    made = weighted("mine", "because", fragmentation=1000, price=5)
    assert made.weights_milli[list(SCORERS).index("price")] == 5
    with pytest.raises(ValueError, match="no scorer luck"):
        weighted("mine", "because", luck=1)
    with pytest.raises(ValueError, match="between 0 and"):
        weighted("mine", "because", price=-1)
