"""Changes of a GPU's layout: what runs is left alone, what can stay stays, and a half-made change goes back."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courtier.domain.reasons import Reason
from courtier.placement.layout import (
    A30,
    SEVEN_SLICES,
    Geometry,
    Instance,
    LayoutChange,
    covered,
    place_all,
    plan_change,
    plan_return,
)


def test_the_public_report_of_a_layout_changed_beside_a_busy_instance() -> None:
    """2x1g + 2g + 3g to 7x1g while a 1g is busy: it stays, only idle ones go, nothing waits for the GPU to be idle."""
    now = [Instance(0, "1g"), Instance(1, "1g"), Instance(2, "2g"), Instance(4, "3g")]
    change = plan_change(SEVEN_SLICES, now, {Instance(1, "1g"): "job 7"}, ["1g"] * 7)
    assert isinstance(change, LayoutChange)
    assert change.keep == (Instance(0, "1g"), Instance(1, "1g"))
    assert change.destroy == (Instance(2, "2g"), Instance(4, "3g"))
    assert [instance.start for instance in change.create] == [2, 3, 4, 5, 6]


def test_the_largest_goes_in_first() -> None:
    """3g at 4, then two 2g: the other order ends without room for the 3g."""
    change = plan_change(SEVEN_SLICES, [], {}, ["2g", "2g", "3g"])
    assert isinstance(change, LayoutChange)
    assert change.create[0].profile == "3g"
    assert covered(SEVEN_SLICES, change.create).bit_count() == 8


def test_a_busy_instance_that_the_new_layout_has_not_is_named_with_its_holder() -> None:
    refused = plan_change(SEVEN_SLICES, [Instance(0, "4g")], {Instance(0, "4g"): "pid 12 of ada"}, ["1g"] * 7)
    assert isinstance(refused, Reason)
    assert refused.code == "layout_busy" and "pid 12 of ada" in refused.text


def test_a_refusal_names_the_instance_whose_move_would_make_room() -> None:
    """1g at 0, 1 and 5: three slices are free, and a 3g has no place until the one at 5 moves."""
    busy = {Instance(start, "1g"): f"job {start}" for start in (0, 1, 5)}
    refused = plan_change(SEVEN_SLICES, list(busy), busy, ["1g", "1g", "1g", "3g"])
    assert isinstance(refused, Reason)
    assert (refused.code, dict(refused.numbers)["start"]) == ("layout_blocked", 5)


def test_small_ones_leave_room_for_a_large_one() -> None:
    placed = place_all(SEVEN_SLICES, 0, ["1g", "1g", "1g"])
    assert placed is not None and [instance.start for instance in placed] == [0, 1, 2]
    assert place_all(SEVEN_SLICES, covered(SEVEN_SLICES, placed), ["3g"]) == (Instance(4, "3g"),)


geometries = st.sampled_from([SEVEN_SLICES, A30])


@st.composite
def layouts(draw: st.DrawFn, geometry: Geometry) -> list[Instance]:
    found: list[Instance] = []
    for profile in draw(st.lists(st.sampled_from(sorted(geometry.profiles)), max_size=8)):
        placed = place_all(geometry, covered(geometry, found), [profile])
        found += placed or ()
    return found


@given(geometries.flatmap(lambda g: st.tuples(st.just(g), layouts(g), layouts(g), st.integers(0, 255))))
def test_a_change_ends_in_what_was_wanted_and_ends_nothing_busy(
    case: tuple[Geometry, list[Instance], list[Instance], int],
) -> None:
    geometry, now, target, bits = case
    busy = {instance: "job" for place, instance in enumerate(now) if bits >> place & 1}
    wanted = [instance.profile for instance in target]
    change = plan_change(geometry, now, busy, wanted)
    if isinstance(change, Reason):
        assert busy
        return
    after = [*change.keep, *change.create]
    assert Counter(instance.profile for instance in after) == Counter(wanted)
    assert set(busy) <= set(change.keep) and not set(busy) & set(change.destroy)
    assert set(change.keep) | set(change.destroy) == set(now)
    assert all(instance.start in geometry.profiles[instance.profile][0] for instance in after)
    sizes = sum(geometry.profiles[instance.profile][1] for instance in after)
    assert covered(geometry, after).bit_count() == sizes


@pytest.mark.parametrize("done", range(8))
def test_a_change_that_broke_off_goes_back_to_where_it_was(done: int) -> None:
    now = [Instance(0, "1g"), Instance(1, "1g"), Instance(2, "2g"), Instance(4, "3g")]
    change = plan_change(SEVEN_SLICES, now, {Instance(1, "1g"): "job 7"}, ["1g"] * 7)
    assert isinstance(change, LayoutChange)
    steps = [*((False, instance) for instance in change.destroy), *((True, instance) for instance in change.create)]
    there = set(now)
    for makes, instance in steps[:done]:
        (there.add if makes else there.discard)(instance)
    back = plan_return(now, change, sorted(there))
    assert Instance(1, "1g") in back.keep
    assert set(back.keep) | set(back.create) == set(now)
    assert not covered(SEVEN_SLICES, back.keep) & covered(SEVEN_SLICES, back.create)
