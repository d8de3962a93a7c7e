"""Why a GPU is set aside, and what ends that."""

from dataclasses import dataclass
from enum import StrEnum

from courtier.domain.reasons import Reason


class Ends(StrEnum):
    """What ends a quarantine, besides an administrator: that the GPU answers again, or that the machine starts anew."""

    ANSWER = "answer"
    REBOOT = "reboot"


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A GPU that takes no new work. boot_id is the boot in which it was set aside."""

    reason: Reason
    since_ms: int
    boot_id: str
    ends: Ends
