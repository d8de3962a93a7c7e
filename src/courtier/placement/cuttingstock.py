"""What a share of a GPU is worth, from the demand alone: the cutting-stock problem, solved exactly. Pure.

How few GPUs hold so many shares of each size? The linear relaxation's duals price a share of each size (Gilmore and
Gomory, 1961). Rational arithmetic, so that every machine finds the same prices to the last bit.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

from courtier.placement.fleet import GPU_MILLI

# Patterns tried; the traces' demands take fewer than a hundred. Beyond it the prices so far are used.
PATTERNS_MAX = 2_000


def share_values(sizes: Sequence[int], counts: Sequence[int]) -> list[Fraction]:
    """Worth of one share of each size, in GPUs. sizes: different, 1 to 1000 milli; counts: more than 0."""
    rows = range(len(sizes))
    inverse = [
        [Fraction(1, GPU_MILLI // sizes[row]) if row == column else Fraction(0) for column in rows] for row in rows
    ]
    amounts = [Fraction(count, GPU_MILLI // size) for size, count in zip(sizes, counts, strict=True)]
    values = _duals(inverse)
    for _ in range(PATTERNS_MAX):
        pattern, worth = best_pattern(sizes, values)
        if worth <= 1:
            break
        _pivot(inverse, amounts, pattern)
        values = _duals(inverse)
    return values


def _duals(inverse: list[list[Fraction]]) -> list[Fraction]:
    """Every pattern costs one GPU, so the duals are the column sums."""
    return [sum((row[column] for row in inverse), Fraction(0)) for column in range(len(inverse))]


def best_pattern(sizes: Sequence[int], values: Sequence[Fraction]) -> tuple[list[int], Fraction]:
    """The filling of one GPU that is worth most, the first found of equals, and its worth: an unbounded knapsack."""
    scale = lcm(*(value.denominator for value in values)) if values else 1
    whole = [int(value * scale) for value in values]
    best, last = [0] * (GPU_MILLI + 1), [-1] * (GPU_MILLI + 1)
    for room in range(1, GPU_MILLI + 1):
        best[room] = best[room - 1]
        for place, size in enumerate(sizes):
            if size <= room and best[room - size] + whole[place] > best[room]:
                best[room], last[room] = best[room - size] + whole[place], place
    pattern, room = [0] * len(sizes), GPU_MILLI
    while room > 0:
        if last[room] < 0:
            room -= 1
        else:
            pattern[last[room]] += 1
            room -= sizes[last[room]]
    return pattern, Fraction(best[GPU_MILLI], scale)


def _pivot(inverse: list[list[Fraction]], amounts: list[Fraction], pattern: list[int]) -> None:
    """Brings a pattern into the basis for the one that runs out first, the first of equals."""
    rows = range(len(inverse))
    column = [sum((inverse[row][at] * pattern[at] for at in rows if pattern[at]), Fraction(0)) for row in rows]
    leaving = min((row for row in rows if column[row] > 0), key=lambda row: (amounts[row] / column[row], row))
    step = amounts[leaving] / column[leaving]
    for row in rows:
        if row != leaving and column[row]:
            amounts[row] -= step * column[row]
            factor = column[row] / column[leaving]
            inverse[row] = [own - factor * other for own, other in zip(inverse[row], inverse[leaving], strict=True)]
    inverse[leaving] = [value / column[leaving] for value in inverse[leaving]]
    amounts[leaving] = step
