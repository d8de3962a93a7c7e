"""Amounts as people write them, into integers: sizes, durations, instants, arrays, GPUs. Pure; `now` is an argument.

Every function raises ValueError with a sentence that says what was given and what is understood.
"""

import re
from datetime import datetime, timedelta

INTEGER_MAX = (1 << 62) - 1
_SIZE = re.compile(r"^(\d{1,19})(?:\.(\d{1,6}))?\s*([KMGT])(?:i?B)?$", re.IGNORECASE)
_POWERS = {"K": 10, "M": 20, "G": 30, "T": 40}
_SPAN = re.compile(r"^(?:\d{1,18}(?:\.\d{1,6})?(?:ms|[dhms]))+$", re.IGNORECASE)
_SPAN_PART = re.compile(r"(\d+)(?:\.(\d+))?(ms|[dhms])", re.IGNORECASE)
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SLURM_TIME = re.compile(r"^(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?$")
_NOW = re.compile(r"^now(?:\+(\d+)\s*(seconds?|minutes?|hours?|days?|weeks?|[smhd])?)?$", re.IGNORECASE)
_INDEX_RANGE = re.compile(r"^(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?$")
ARRAY_SIZE_MAX = 1_000_000


def parse_size(text: str, *, bare_unit: str | None = None) -> int:
    """ "18G" -> bytes; powers of 1,024. A number without a unit is refused unless `bare_unit` names one."""
    words = text.strip()
    if bare_unit is not None and words.isdigit():
        words += bare_unit
    match = _SIZE.match(words)
    if match is None:
        raise ValueError(f"{text!r} is not a size: write a number and K, M, G or T, as in 18G")
    whole, fraction, unit = match.groups()
    scale = 1 << _POWERS[unit.upper()]
    amount = int(whole) * scale
    if fraction:
        amount += int(fraction) * scale // 10 ** len(fraction)
    if amount > INTEGER_MAX:
        raise ValueError(f"{text!r} is more than any machine has")
    if amount == 0:
        raise ValueError(f"{text!r} is nothing: a size is more than 0")
    return amount


def parse_duration(text: str) -> int | None:
    """Milliseconds; Slurm's forms (MM, MM:SS, HH:MM:SS, D-HH[:MM[:SS]]) and 90s, 0.5s, 2h, 1d12h. None: no limit."""
    words = text.strip()
    if words.lower() in ("infinite", "unlimited", "-1"):
        return None
    if _SPAN.match(words):
        total = sum(_span_part(*part) for part in _SPAN_PART.findall(words))
    else:
        total = _slurm_duration(text, words)
    if total > INTEGER_MAX:
        raise ValueError(f"{text!r} is longer than any machine lives")
    return total


def _span_part(whole: str, fraction: str, unit: str) -> int:
    scale = _UNIT_MS[unit.lower()]
    return int(whole) * scale + (int(fraction) * scale // 10 ** len(fraction) if fraction else 0)


def _slurm_duration(text: str, words: str) -> int:
    match = _SLURM_TIME.match(words)
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write 90m, 2h, MM, MM:SS, HH:MM:SS or D-HH:MM")
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
    return ((int(days or 0) * 24 + hours) * 3600 + minutes * 60 + seconds) * 1000


def parse_grace(text: str) -> int:
    """A duration in which a bare number means seconds."""
    words = text.strip()
    duration = parse_duration(words + "s" if words.isdigit() else words)
    if duration is None:
        raise ValueError("a grace has an end")
    return duration


def parse_instant(text: str, now_ms: int) -> int:
    """now+1hour, now+90 (seconds), HH:MM (the next one), or an ISO date and time in local time."""
    words = text.strip()
    match = _NOW.match(words)
    if match is not None:
        count, unit = int(match.group(1) or 0), (match.group(2) or "s")[0].lower()
        return now_ms + count * (604_800_000 if unit == "w" else _UNIT_MS[unit])
    now = datetime.fromtimestamp(now_ms / 1000).astimezone()
    try:
        if re.match(r"^\d{1,2}:\d{2}(:\d{2})?$", words):
            hours, minutes, *seconds = (int(part) for part in words.split(":"))
            at = now.replace(hour=hours, minute=minutes, second=seconds[0] if seconds else 0, microsecond=0)
            at += timedelta(days=1) if at <= now else timedelta(0)
        else:
            at = datetime.fromisoformat(words)
        return int(at.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not an instant: write now+1hour, 16:30 or 2026-12-24T08:00") from None


def parse_array(text: str) -> tuple[list[int], int | None]:
    """ "0-9%2" -> (indices, how many at once); also 1,3,5 and 0-20:5."""
    ranges, percent, limit = text.strip().partition("%")
    if percent and (not limit.isdigit() or not 1 <= int(limit) <= ARRAY_SIZE_MAX):
        raise ValueError(f"{text!r}: the number after % says how many run at once, from 1")
    indices: list[int] = []
    for part in ranges.split(","):
        match = _INDEX_RANGE.match(part.strip())
        if match is None:
            raise ValueError(f"{text!r} is not an array: write 0-9, 0-9%2, 1,3,5 or 0-20:5")
        first, last, step = int(match.group(1)), int(match.group(2) or match.group(1)), int(match.group(3) or 1)
        if last < first or step < 1 or (last - first) // step >= ARRAY_SIZE_MAX:
            raise ValueError(f"{text!r}: {part!r} counts nothing, or more than {ARRAY_SIZE_MAX}")
        indices.extend(range(first, last + 1, step))
    if len(set(indices)) != len(indices):
        raise ValueError(f"{text!r} names an index twice")
    return indices, int(limit) if percent else None


def parse_gpus(text: str) -> tuple[int, str | None]:
    """ "2", "a100:2", "gpu:a100:2" (Slurm's gres) or "a100" -> (how many, model)."""
    parts = text.strip().split(":")
    if parts and parts[0].lower() == "gpu":
        parts = parts[1:] or ["1"]
    count = 1
    if parts[-1].isdigit() and parts[-1].isascii():
        count = int(parts[-1][:12])
        parts = parts[:-1]
    if len(parts) > 1 or (parts and not re.match(r"^[A-Za-z][\w.-]*$", parts[0])):
        raise ValueError(f"{text!r} is not GPUs: write 2, a100:2 or gpu:a100:2")
    return count, parts[0] if parts else None
