"""Named scorers and the policies made of them, as data. Pure.

A score is a whole number; weights are thousandths. A policy of one of the published integer scores has a `rule`
of its own; all others are sums of weighted scorers.
"""

from dataclasses import dataclass
from decimal import Decimal, localcontext
from math import ceil

import numpy as np

from courtier.placement.demand import ONE
from courtier.placement.fleet import GPU_MILLI, Ints

# scorer -> what it counts and why it is worth counting. Lower is better; the unit is a thousandth of a GPU.
SCORERS: dict[str, str] = {
    "fragmentation": "growth of the GPU share that a next request, drawn from the demand, could not use on the node",
    "stranding": "growth of the GPU share that the node's CPU can not serve, if the demand's mean took both",
    "price": "worth of a GPU's residual that is lost: the cutting-stock price before less the one after",
    "opening": "a share that breaks into a GPU nobody uses",
    "wholeness": "free whole GPUs that stay on the node of a request for whole GPUs",
    "packing": "free GPU share that stays on the node",
}
WEIGHT_NAMES = tuple(SCORERS)
# Weights are bounded so that a sum of them fits 64 bits.
WEIGHT_MILLI_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Weights:
    """A policy. weights_milli are in the order of WEIGHT_NAMES; rule None: the weighted sum decides."""

    name: str
    why: str
    weights_milli: tuple[int, ...] = (0,) * len(WEIGHT_NAMES)
    rule: str | None = None

    def column(self) -> Ints:
        return np.array(self.weights_milli, dtype=np.int64)


def weighted(name: str, why: str, **weights_milli: int) -> Weights:
    """Raises ValueError for a scorer that is not there or a weight out of bounds."""
    for scorer, weight in weights_milli.items():
        if scorer not in SCORERS:
            raise ValueError(f"no scorer {scorer}: there are {', '.join(SCORERS)}")
        if not 0 <= weight <= WEIGHT_MILLI_MAX:
            raise ValueError(f"weight {weight} of {scorer} is not between 0 and {WEIGHT_MILLI_MAX}")
    return Weights(name, why, tuple(weights_milli.get(scorer, 0) for scorer in WEIGHT_NAMES))


RULES = ("sum", "fgd", "bestfit", "dotprod", "gpupacking", "random")

POLICIES: dict[str, Weights] = {
    policy.name: policy
    for policy in (
        weighted(
            "courtier",
            "the best found on the public traces: fragmentation, CPU that strands GPUs, the price of residuals",
            fragmentation=1000,
            stranding=3650,
            price=1660,
            opening=77_600,
            wholeness=10_200,
            packing=110,
        ),
        Weights("fgd", "fragmentation gradient descent with its published integer score (ATC'23)", rule="fgd"),
        Weights("bestfit", "least CPU and GPU left, with the published integer score", rule="bestfit"),
        Weights("dotprod", "demand aligned with what is free, with the published integer score", rule="dotprod"),
        Weights("gpupacking", "used GPUs first, then used nodes, with the published integer score", rule="gpupacking"),
        Weights("random", "any node that fits, from the seed", rule="random"),
    )
}


def sigmoid_steps() -> Ints:
    """FGD's score is floor(100 sigmoid(x / 1000)): the least x, in milli x ONE, that gives 1, 2, ... 99.

    By decimal arithmetic, so that no machine's logarithm can move a step.
    """
    with localcontext() as context:
        context.prec = 50
        steps = [
            ceil(Decimal(ONE * GPU_MILLI) * (Decimal(score).ln() - Decimal(100 - score).ln()))
            for score in range(1, 100)
        ]
    return np.array(steps, dtype=np.int64)
