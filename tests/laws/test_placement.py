"""Laws of placement: nothing beyond capacity, every refusal has a reason, brute force agrees on what fits."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from courtier.domain.devices import Box, DeviceMode
from courtier.domain.reasons import Reason
from courtier.domain.workloads import Request
from courtier.placement.feasible import gpus_wanted, impossible, of_model
from courtier.placement.select import memory_asked, select
from courtier.placement.topology import best_linked, closeness
from strategies import box_room, boxes, empty_rooms, requests, rooms


@given(boxes(), requests())
def test_possible_means_that_it_fits_an_empty_box(box: Box, request: Request) -> None:
    refusal = impossible(request, box)
    found = select(request, box_room(box), empty_rooms(box))
    assert (refusal is None) == (not isinstance(found, Reason))


@given(st.data(), boxes(), requests())
def test_what_is_given_is_there_and_what_is_refused_does_not_fit(
    data: st.DataObject, box: Box, request: Request
) -> None:
    if impossible(request, box) is not None:
        return
    in_use = data.draw(rooms(box))
    found = select(request, box_room(box), in_use)
    by_uuid = {room.device.uuid: room for room in in_use}
    if isinstance(found, Reason):
        assert found.text
        assert not _brute_force(request, in_use)
        return
    assert len({share.uuid for share in found}) == len(found)
    for share in found:
        room = by_uuid[share.uuid]
        assert room.open
        assert share.memory_bytes <= room.memory_bytes_free
        assert not share.whole or room.tenants == 0
        assert room.mode is not DeviceMode.WHOLE
    if request.split:
        assert sum(share.memory_bytes for share in found) >= (request.gpu_memory_bytes or 0)


def _brute_force(request: Request, in_use: tuple) -> bool:  # type: ignore[type-arg]
    """Whether any set of GPUs meets the request."""
    allowed = {device.uuid for device in of_model([room.device for room in in_use], request.gpu_model)}
    fitting = [room for room in in_use if room.device.uuid in allowed and room.open]
    empty = [room for room in fitting if room.tenants == 0]
    if request.split:
        return any(
            len({room.device.model for room in chosen}) == 1
            and sum(room.device.memory_bytes_usable for room in chosen) >= (request.gpu_memory_bytes or 0)
            and len(chosen) >= max(1, request.gpus)
            for count in range(1, len(empty) + 1)
            for chosen in combinations(empty, count)
        )
    if request.gpu_memory_bytes is None:
        return len(empty) >= gpus_wanted(request)
    sharing = [
        room
        for room in fitting
        if room.mode is not DeviceMode.WHOLE and room.memory_bytes_free >= memory_asked(request, room.device)
    ]
    return len(sharing) >= gpus_wanted(request)


@given(boxes(), st.integers(1, 6))
def test_best_linked_is_the_best_of_all_sets(box: Box, count: int) -> None:
    if count > len(box.devices):
        return
    chosen = best_linked(box.devices, count)
    best = max(closeness(devices) for devices in combinations(box.devices, count))
    assert closeness(chosen) == best
