"""Amounts as people write them: tables of what is understood, and a property for what is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courtier.domain import units
from courtier.domain.amounts import words_of_bytes, words_of_ms

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("18G", 18 * GIB),
        ("18GiB", 18 * GIB),
        ("18gb", 18 * GIB),
        ("1.5G", 3 * GIB // 2),
        ("512M", GIB // 2),
        ("4K", 4096),
    ],
)
def test_sizes(text: str, amount: int) -> None:
    assert units.parse_size(text) == amount


@pytest.mark.parametrize("text", ["", "18", "-1G", "G", "1e3G", "0G", "9999999999T", "1G2", "１８G x", "\0"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|nothing|machine"):
        units.parse_size(text)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("90", 90 * 60_000),
        ("1:30", 90_000),
        ("1:00:00", 3_600_000),
        ("1-0", 86_400_000),
        ("1-1:30", 91_800_000),
        ("1-0:0:1", 86_401_000),
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("200ms", 200),
        ("2d", 172_800_000),
        ("UNLIMITED", None),
    ],
)
def test_durations(text: str, duration_ms: int | None) -> None:
    assert units.parse_duration(text) == duration_ms


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("0-3", ([0, 1, 2, 3], None)),
        ("0-9%2", (list(range(10)), 2)),
        ("1,3,5", ([1, 3, 5], None)),
        ("0-20:5", ([0, 5, 10, 15, 20], None)),
        ("1-2,7%1", ([1, 2, 7], 1)),
    ],
)
def test_arrays(text: str, parsed: tuple[list[int], int | None]) -> None:
    assert units.parse_array(text) == parsed


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("2", (2, None)), ("a100:2", (2, "a100")), ("gpu:a100:2", (2, "a100")), ("gpu:3", (3, None)), ("gpu", (1, None))],
)
def test_gpus(text: str, parsed: tuple[int, str | None]) -> None:
    assert units.parse_gpus(text) == parsed


def test_instants() -> None:
    now_ms = 1_700_000_000_000
    assert units.parse_instant("now", now_ms) == now_ms
    assert units.parse_instant("now+1hour", now_ms) == now_ms + 3_600_000
    assert units.parse_instant("now+90", now_ms) == now_ms + 90_000
    assert now_ms < units.parse_instant("16:30", now_ms) <= now_ms + 86_400_000


@given(st.text(max_size=30))
def test_any_text_is_understood_or_refused_with_a_sentence(text: str) -> None:
    for parse in (units.parse_size, units.parse_duration, units.parse_array, units.parse_gpus, units.parse_grace):
        try:
            parse(text)
        except ValueError as error:
            assert len(str(error)) > 10
    try:
        units.parse_instant(text, 1_700_000_000_000)
    except ValueError as error:
        assert "instant" in str(error)


@given(st.integers(1, 1 << 50))
def test_words_are_never_further_off_than_a_decimal(amount: int) -> None:
    number, unit = words_of_bytes(amount).split()
    scale = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}[unit]
    assert abs(float(number) * scale - amount) <= 0.051 * scale


def test_words_of_durations() -> None:
    assert [words_of_ms(n) for n in (0, 999, 1000, 90_000, 3_600_000, 90_061_000)] == [
        "0ms",
        "999ms",
        "1s",
        "1m30s",
        "1h",
        "1d1h",
    ]
