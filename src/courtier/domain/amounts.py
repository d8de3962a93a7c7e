"""Amounts in words, for sentences that people read. Exact amounts stay integers elsewhere."""


def words_of_bytes(amount_bytes: int) -> str:
    """1,536 MiB -> "1.5 GiB"; at most one decimal, the largest unit that leaves at least 1."""
    size = float(amount_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return _short(size, unit)
        size /= 1024
    return _short(size, "TiB")


def _short(size: float, unit: str) -> str:
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"


def words_of_ms(duration_ms: int) -> str:
    """90,000 -> "1m30s"; the two largest units that are not zero."""
    if duration_ms < 1000:
        return f"{duration_ms}ms"
    seconds = duration_ms // 1000
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    first = next(index for index, (count, _) in enumerate(parts) if count)
    return "".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count)
