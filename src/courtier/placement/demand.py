"""What is likely to be asked next: the classes of request and their shares, as whole numbers. Pure.

Shares are fixed-point (24 bits), so that sums over classes are exact and every path finds the same score.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from courtier.placement.cuttingstock import share_values
from courtier.placement.fleet import GPU_MILLI, Ints, Kind, model_mask

ONE = 1 << 24
# The most frequent classes that together are this part of all requests stand for the rest.
COVERED_PERCENT = 95


@dataclass(frozen=True, slots=True)
class Demand:
    """Classes as columns; share sums to ONE. price[r] is what a GPU's residual of r milli is worth, in milli x ONE;
    cpu_milli_per_gpu is the CPU that a whole GPU's worth of this demand takes along."""

    cpu_milli: Ints
    gpu_milli: Ints
    gpus: Ints
    models: Ints
    share: Ints
    price: Ints
    cpu_milli_per_gpu: int


def shares_of(counts: Sequence[int]) -> list[int]:
    """Fixed-point parts, by largest remainder: they sum to exactly ONE."""
    total = sum(counts)
    exact = [(count * ONE // total, count * ONE % total, -place) for place, count in enumerate(counts)]
    shares = [whole for whole, _, _ in exact]
    missing = ONE - sum(shares)
    for _, place in sorted(((remainder, place) for _, remainder, place in exact), reverse=True)[:missing]:
        shares[-place] += 1
    return shares


def demand_of(kinds: Iterable[Kind], models: Sequence[str]) -> Demand:
    """The demand of a sample of requests: classes (CPU, share, GPUs, models), the most frequent first."""
    kinds = list(kinds)
    counts = Counter((kind.cpu_milli, kind.gpu_milli, kind.gpus, kind.models or ()) for kind in kinds)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], *(-amount for amount in item[0][:3]), item[0][3]))
    wanted, covered, chosen = (
        sum(counts.values()) * COVERED_PERCENT,
        0,
        list[tuple[tuple[int, int, int, tuple[str, ...]], int]](),
    )
    for item in ordered:
        chosen.append(item)
        covered += item[1] * 100
        if covered >= wanted:
            break
    rows = [(*key[:3], model_mask(key[3] or None, models)) for key, _ in chosen]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    cpu = sum(key[0] * count for key, count in chosen if key[2] > 0)
    gpu = sum(key[1] * key[2] * count for key, count in chosen if key[2] > 0)
    return Demand(
        cpu_milli=table[:, 0].copy(),
        gpu_milli=table[:, 1].copy(),
        gpus=table[:, 2].copy(),
        models=table[:, 3].copy(),
        share=np.array(shares_of([count for _, count in chosen]), dtype=np.int64),
        price=prices_of(kinds),
        cpu_milli_per_gpu=max(1, cpu * GPU_MILLI // gpu) if gpu else 1,
    )


def prices_of(kinds: Iterable[Kind]) -> Ints:
    """The price of every residual under the demand for shares in a sample of requests."""
    counts = Counter(kind.gpu_milli for kind in kinds if kind.gpus == 1 and 0 < kind.gpu_milli < GPU_MILLI)
    sizes = sorted(counts)
    return residual_prices(sizes, share_values(sizes, [counts[size] for size in sizes]))


def residual_prices(sizes: Sequence[int], values: Sequence[Fraction]) -> Ints:
    """What each residual of a GPU can still earn, in milli x ONE: an unbounded knapsack of shares.

    sizes in milli; values are the worth of one share in GPUs (cuttingstock.share_values).
    """
    worth = [round(value * GPU_MILLI * ONE) for value in values]
    table = np.zeros(GPU_MILLI + 1, dtype=np.int64)
    for residual in range(1, GPU_MILLI + 1):
        best = int(table[residual - 1])
        for size, value in zip(sizes, worth, strict=True):
            if size <= residual:
                best = max(best, int(table[residual - size]) + value)
        table[residual] = best
    return table
