"""What a reading says of a GPU's health. Pure: from one reading to what follows from it."""

from dataclasses import dataclass

from courtier.domain.devices import Reading
from courtier.domain.health import Ends
from courtier.domain.reasons import Reason, reason
from courtier.metering.xids import XidAction, xid_action, xid_words

# Faults that take the jobs on the GPU along: there is nothing left for them to run on.
FATAL_FAULTS = frozenset({"gpu_lost"})
_FATAL_XIDS = frozenset({79})


@dataclass(frozen=True, slots=True)
class Finding:
    """The GPU is to be set aside, for this reason and until that; fatal: the jobs on it are lost."""

    reason: Reason
    ends: Ends
    fatal: bool


def finding_of(reading: Reading) -> Finding | None:
    """The gravest thing that a reading shows, None where the GPU may work."""
    if reading.fault is not None:
        code = {
            "gpu_lost": "gpu_fell_away",
            "gpu_hung": "gpu_hung",
            "gpu_reset_required": "gpu_reset_required",
            "driver_mismatch": "driver_mismatch",
        }.get(reading.fault, "driver_failed")
        return Finding(reason(code), Ends.ANSWER, reading.fault in FATAL_FAULTS)
    found: Finding | None = None
    for xid in reading.xids:
        action = xid_action(xid)
        if action in (XidAction.RESET, XidAction.REBOOT):
            asks = "a restart of the machine" if action is XidAction.REBOOT else "a reset of the GPU"
            why = reason("gpu_xid", xid=xid, words=xid_words(xid), asks=asks)
            if found is None or xid in _FATAL_XIDS:
                found = Finding(why, Ends.REBOOT, xid in _FATAL_XIDS)
    return found


def degraded(reading: Reading, *, hot_celsius: int) -> Reason | None:
    """Why a working GPU deserves a look, or None."""
    celsius = reading.temperature_celsius
    if celsius is not None and celsius >= hot_celsius:
        return reason("gpu_hot", celsius=celsius, hot_celsius=hot_celsius)
    return None
