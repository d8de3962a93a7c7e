"""Which GPUs belong together: the best linked set of a given size. Pure; searches a bounded number of sets."""

from collections.abc import Sequence
from itertools import combinations, islice

from courtier.domain.devices import LINK_KINDS, Device

# Sets looked at before the greedy answer is taken: all of C(12, 6); bounded so that a large box decides as fast.
SETS_MAX = 1000
_WORTH = {kind: len(LINK_KINDS) - place for place, kind in enumerate(LINK_KINDS)}


def closeness(devices: Sequence[Device]) -> int:
    """Sum over all pairs of the worth of their link (nvlink 6 ... sys 1, unknown 0)."""
    worth = 0
    uuids = {device.uuid for device in devices}
    for device in devices:
        worth += sum(_WORTH.get(kind, 0) for uuid, kind in device.links if uuid in uuids)
    return worth // 2


def best_linked(devices: Sequence[Device], count: int) -> tuple[Device, ...]:
    """The `count` devices with the greatest closeness; ties go to the first in the given order."""
    if count >= len(devices):
        return tuple(devices)
    if count == 1:
        return (devices[0],)
    sets = list(islice(combinations(devices, count), SETS_MAX + 1))
    if len(sets) <= SETS_MAX:
        return max(sets, key=closeness)
    return max((_grown(devices, seed, count) for seed in devices), key=closeness)


def _grown(devices: Sequence[Device], seed: Device, count: int) -> tuple[Device, ...]:
    chosen = [seed]
    links = dict(seed.links)
    rest = sorted(
        (device for device in devices if device is not seed),
        key=lambda device: -_WORTH.get(links.get(device.uuid, ""), 0),
    )
    chosen += rest[: count - 1]
    order = {device.uuid: place for place, device in enumerate(devices)}
    return tuple(sorted(chosen, key=lambda device: order[device.uuid]))
