"""Golden answers of feasibility and topology: the code and the numbers of every refusal, the best linked set."""

from typing import Any

import pytest

from courtier.domain.devices import Device
from courtier.domain.workloads import Request
from courtier.placement.feasible import gpus_wanted, impossible, split_count
from courtier.placement.topology import best_linked, closeness
from makers import GIB, make_box, make_device

BOX = make_box(
    *(make_device(n, size_gib=80) for n in range(2)),
    *(make_device(n, size_gib=24, model="L4") for n in range(2, 5)),
    cpus=16,
    memory_gib=64,
)

IMPOSSIBLE: list[tuple[dict[str, Any], str | None, dict[str, Any]]] = [
    ({"cpus": 16}, None, {}),
    ({"cpus": 17}, "cpus_exceed_box", {"cpus": 17, "cpus_total": 16}),
    ({"memory_bytes": 64 * GIB}, None, {}),
    ({"memory_bytes": 64 * GIB + 1}, "memory_exceeds_box", {"needed_bytes": 64 * GIB + 1, "total_bytes": 64 * GIB}),
    ({"gpus": 5}, None, {}),
    ({"gpus": 6}, "gpus_exceed_inventory", {"gpus": 6, "gpus_total": 5}),
    ({"gpus": 3, "gpu_model": "a100"}, "gpus_of_model_exceed", {"gpus": 3, "gpus_total": 2, "model": "a100"}),
    ({"gpu_model": "h100"}, "gpu_model_unknown", {"model": "h100", "models": "A100-80GB, L4"}),
    ({"gpu_memory_bytes": 80 * GIB}, None, {}),
    ({"gpu_memory_bytes": 81 * GIB}, "gpu_memory_exceeds_card", {"needed_bytes": 81 * GIB, "largest_bytes": 80 * GIB}),
    (
        {"gpus": 3, "gpu_memory_bytes": 25 * GIB},
        "gpu_memory_too_few_cards",
        {"gpus": 3, "needed_bytes": 25 * GIB, "gpus_total": 2},
    ),
    ({"gpu_memory_bytes": 160 * GIB, "split": True}, None, {}),
    (
        {"gpu_memory_bytes": 161 * GIB, "split": True},
        "gpu_memory_exceeds_box",
        {"needed_bytes": 161 * GIB, "total_bytes": 160 * GIB},
    ),
    ({"gpus": 3, "gpu_memory_bytes": 72 * GIB, "split": True}, None, {}),
    ({"gpu_milli": 1000}, None, {}),
    ({"gpu_milli": 1001}, "gpu_milli_range", {"gpu_milli": 1001}),
    ({"gpu_milli": 0}, "gpu_milli_range", {"gpu_milli": 0}),
    ({"mig_profile": "1g.10gb"}, "mig_not_here", {"profile": "1g.10gb"}),
]


@pytest.mark.parametrize(("asked", "code", "numbers"), IMPOSSIBLE)
def test_what_can_never_be_met_says_why(asked: dict[str, Any], code: str | None, numbers: dict[str, Any]) -> None:
    refusal = impossible(Request(**asked), BOX)
    assert (refusal.code if refusal else None) == code
    if refusal is not None:
        assert dict(refusal.numbers) == numbers
        assert refusal.impossible


@pytest.mark.parametrize(
    ("asked", "count"),
    [({}, 0), ({"gpus": 3}, 3), ({"gpu_memory_bytes": 1}, 1), ({"gpu_model": "l4"}, 1), ({"gpu_milli": 5}, 1)],
)
def test_memory_a_share_or_a_model_alone_means_one(asked: dict[str, Any], count: int) -> None:
    assert gpus_wanted(Request(**asked)) == count


@pytest.mark.parametrize(("gib", "gpus", "count"), [(80, 0, 1), (81, 0, 2), (160, 0, 2), (10, 3, 3), (161, 2, 3)])
def test_a_split_takes_as_few_as_hold_it(gib: int, gpus: int, count: int) -> None:
    assert split_count(Request(gpus=gpus, gpu_memory_bytes=gib * GIB, split=True), BOX.devices[:2]) == count


def linked(count: int, kind: dict[frozenset[int], str]) -> list[Device]:
    """Devices 0..count-1; pairs that `kind` does not name are "sys"."""
    return [
        make_device(n, links=tuple((f"GPU-{o}", kind.get(frozenset({n, o}), "sys")) for o in range(count) if o != n))
        for n in range(count)
    ]


def test_the_best_linked_set_wins_and_ties_go_to_the_first() -> None:
    pairs = {frozenset({0, 1}): "node", frozenset({2, 3}): "nvlink", frozenset({1, 2}): "pix"}
    devices = linked(4, pairs)
    assert [device.index for device in best_linked(devices, 2)] == [2, 3]
    assert [device.index for device in best_linked(devices, 3)] == [1, 2, 3]
    assert [device.index for device in best_linked(linked(4, {}), 2)] == [0, 1]
    assert [device.index for device in best_linked(devices, 1)] == [0]
    assert closeness(devices[2:]) == 6
    assert closeness(devices[:2]) == 2


def test_a_large_box_is_searched_from_each_device_and_finds_the_island() -> None:
    island = {4, 9, 13, 17, 20, 22, 25, 30}
    pairs = {frozenset({a, b}): "nvlink" for a in island for b in island if a != b}
    assert {device.index for device in best_linked(linked(32, pairs), 8)} == island
