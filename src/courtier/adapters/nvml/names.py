"""From the name that NVML gives a card to Courtier's name of its model, checked against its memory.

A card that is none of domain.models.MODELS keeps its own name without the maker's words ("RTX-4090").
"""

import re

from courtier.domain.models import MODELS

# Drivers and settings move the total: a card without ECC shows up to 7 % more than one with it.
MEMORY_TOLERANCE_PERCENT = 8
_MAKERS_WORDS = {"nvidia", "tesla", "geforce", "graphics", "corporation"}
# Names whose words differ from the model's.
_SPOKEN = {
    "RTX-PRO-6000-BLACKWELL-SERVER-EDITION": "RTX-PRO-6000-BSE-96GB",
    "RTX-PRO-6000-BLACKWELL-SERVER": "RTX-PRO-6000-BSE-96GB",
}


def model_name(driver_name: str, memory_bytes_total: int | None) -> str:
    """ "NVIDIA A100-SXM4-80GB" with its memory -> "A100-80GB"; memory None: the GPU has none of its own."""
    words = [word for word in re.split(r"[^A-Za-z0-9.]+", driver_name) if word]
    kept = [word for word in words if word.lower() not in _MAKERS_WORDS]
    if not kept:
        return "unknown"
    cleaned = "-".join(kept)
    if memory_bytes_total is None:
        return cleaned
    spoken = _SPOKEN.get(cleaned.upper())
    candidates = [spoken] if spoken else _family([word.upper() for word in kept])
    fitting = [name for name in candidates if _off_percent(name, memory_bytes_total) <= MEMORY_TOLERANCE_PERCENT]
    return min(fitting, key=lambda name: _off_percent(name, memory_bytes_total), default=cleaned)


def _family(words: list[str]) -> list[str]:
    """Models with the same first word, and NVL exactly where the card says it."""
    same = [name for name in MODELS if name.split("-")[0] == words[0]]
    return [name for name in same if ("NVL" in name.split("-")) == ("NVL" in words)]


def _off_percent(name: str, memory_bytes_total: int) -> int:
    wanted = MODELS[name].memory_bytes_total
    return abs(memory_bytes_total - wanted) * 100 // wanted
