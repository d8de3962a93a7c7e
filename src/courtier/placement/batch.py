"""A batch of decisions over a fleet: each request in turn goes to the node of the best score, and its room is gone.

Keeps the scores of every kind and looks again only at nodes that changed since: what a decision costs follows from
what changed, not from the size of the fleet. The same decisions with and without compiled kernels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from courtier.placement.demand import Demand
from courtier.placement.fleet import Fleet, Ints, Kind, columns
from courtier.placement.score import UNFIT, Scratch, scores
from courtier.placement.weights import RULES, Weights, sigmoid_steps


@dataclass(frozen=True, slots=True)
class Batch:
    """node per request (-1: fits nowhere), and the GPUs that it took as bits of a mask."""

    node: Ints
    gpus: Ints


def decide(
    fleet: Fleet,
    kinds: Sequence[Kind],
    order: Ints,
    demand: Demand,
    policy: Weights,
    *,
    seed: int = 0,
    kernels: Any = None,
) -> Batch:
    """Places order[i] (a row of kinds) one after the other. kernels: the compiled path, None for numpy."""
    table = columns(kinds, fleet.models)
    if kernels is not None:
        node, gpus = kernels.decide(
            fleet.cpu_milli_free.copy(),
            fleet.memory_mib_free.copy(),
            fleet.gpu_milli_free.copy(),
            fleet.model,
            (table.cpu_milli, table.memory_mib, table.gpus, table.gpu_milli, table.models),
            (demand.cpu_milli, demand.gpu_milli, demand.gpus, demand.models, demand.share, demand.price),
            demand.cpu_milli_per_gpu,
            policy.column(),
            RULES.index(policy.rule or "sum"),
            sigmoid_steps(),
            np.asarray(order, dtype=np.int64),
            seed,
        )
        return Batch(node, gpus)
    return _decide(fleet, table, order, demand, policy, seed)


def _decide(fleet: Fleet, table: Any, order: Ints, demand: Demand, policy: Weights, seed: int) -> Batch:
    scratch = Scratch(fleet.cpu_milli_free, fleet.memory_mib_free, fleet.gpu_milli_free, fleet.model)
    everyone = np.arange(len(fleet), dtype=np.int64)
    kept: dict[int, tuple[Ints, Ints]] = {}
    seen: dict[int, int] = {}
    changed: list[int] = []
    node = np.full(len(order), -1, dtype=np.int64)
    gpus = np.zeros(len(order), dtype=np.int64)
    for place, kind in enumerate(int(number) for number in order):
        if policy.rule == "random" or kind not in kept:
            kept[kind] = scores(scratch, everyone, table, kind, demand, policy, salt=seed + place)
        else:
            stale = np.unique(np.array(changed[seen[kind] :], dtype=np.int64))
            if len(stale):
                kept[kind][0][stale], kept[kind][1][stale] = scores(scratch, stale, table, kind, demand, policy)
        seen[kind] = len(changed)
        score, shared = kept[kind]
        best = int(score.argmax())
        if score[best] == UNFIT:
            continue
        node[place] = best
        taken = scratch.place(best, table, kind, int(shared[best]))
        gpus[place] = sum(1 << gpu for gpu in taken)
        changed.append(best)
    return Batch(node, gpus)
