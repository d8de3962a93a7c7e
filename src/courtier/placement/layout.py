"""How a partitioned GPU gets from one layout to another without touching what runs. Pure.

Instances that the new layout also has stay, busy ones always; only idle ones are destroyed; what is created goes in
largest first, to starts that the geometry allows. Must never plan the end of a busy instance.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from courtier.domain.reasons import Reason, reason


@dataclass(frozen=True, slots=True)
class Geometry:
    """profile -> (allowed starts, size), on an axis of memory slices. Sizes of legal layouts never overlap."""

    slices: int
    profiles: Mapping[str, tuple[tuple[int, ...], int]]


@dataclass(frozen=True, slots=True, order=True)
class Instance:
    """One partition: where it begins and what it is."""

    start: int
    profile: str


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """Steps in the order in which they are carried out: first all of destroy, then create, one by one."""

    keep: tuple[Instance, ...]
    destroy: tuple[Instance, ...]
    create: tuple[Instance, ...]


# Profiles of the seven-slice GPUs (A100, H100, H200, B200 ...) and of A30, by compute slices: NVIDIA's MIG user guide.
SEVEN_SLICES = Geometry(
    8,
    {
        "1g": (tuple(range(7)), 1),
        "1g.double": ((0, 2, 4, 6), 2),
        "2g": ((0, 2, 4), 2),
        "3g": ((0, 4), 4),
        "4g": ((0,), 4),
        "7g": ((0,), 8),
    },
)
A30 = Geometry(4, {"1g": (tuple(range(4)), 1), "2g": ((0, 2), 2), "4g": ((0,), 4)})


def covered(geometry: Geometry, instances: Sequence[Instance]) -> int:
    """The slices that these take, as bits."""
    mask = 0
    for instance in instances:
        size = geometry.profiles[instance.profile][1]
        mask |= ((1 << size) - 1) << instance.start
    return mask


def place_all(geometry: Geometry, taken: int, profiles: Sequence[str]) -> tuple[Instance, ...] | None:
    """Starts for all profiles beside what is taken, largest first, the lowest that work; None: there are none."""
    ordered = sorted(profiles, key=lambda profile: (-geometry.profiles[profile][1], profile))
    if not ordered:
        return ()
    first, rest = ordered[0], ordered[1:]
    for start in geometry.profiles[first][0]:
        instance = Instance(start, first)
        mask = covered(geometry, [instance])
        if not taken & mask:
            below = place_all(geometry, taken | mask, rest)
            if below is not None:
                return (instance, *below)
    return None


def plan_change(
    geometry: Geometry, now: Sequence[Instance], busy: Mapping[Instance, str], wanted: Sequence[str]
) -> LayoutChange | Reason:
    """The change from `now` to a layout of the `wanted` profiles, or why it can not be made now.

    busy: instances in use, each with who uses it. As many idle instances stay as can.
    """
    need = Counter(wanted)
    for instance in sorted(busy):
        if need[instance.profile] == 0:
            return reason("layout_busy", profile=instance.profile, start=instance.start, holder=busy[instance])
        need[instance.profile] -= 1
    keepable = []
    for instance in sorted(set(now) - set(busy)):
        if need[instance.profile] > 0:
            need[instance.profile] -= 1
            keepable.append(instance)
    for count in range(len(keepable), -1, -1):
        for chosen in combinations(keepable, count):
            keep = tuple(sorted([*busy, *chosen]))
            missing = list((Counter(wanted) - Counter(instance.profile for instance in keep)).elements())
            create = place_all(geometry, covered(geometry, keep), missing)
            if create is not None:
                return LayoutChange(keep, tuple(sorted(set(now) - set(keep))), create)
    return _no_room(geometry, busy, wanted)


def _no_room(geometry: Geometry, busy: Mapping[Instance, str], wanted: Sequence[str]) -> Reason:
    """Names the busy instance whose move would make room, if one alone does."""
    for instance in sorted(busy):
        others = tuple(other for other in busy if other != instance)
        missing = list((Counter(wanted) - Counter(other.profile for other in others)).elements())
        if place_all(geometry, covered(geometry, others), missing) is not None:
            return reason("layout_blocked", profile=instance.profile, start=instance.start, holder=busy[instance])
    return reason("layout_impossible", profiles=" ".join(sorted(wanted)))


def plan_return(before: Sequence[Instance], change: LayoutChange, there: Sequence[Instance]) -> LayoutChange:
    """From a change that broke off half-way back to the layout before it: `there` is what the driver shows now."""
    present = set(there)
    wrong = tuple(sorted(instance for instance in change.create if instance in present))
    missing = tuple(sorted(set(before) - present))
    return LayoutChange(tuple(sorted(present - set(wrong))), wrong, missing)
