"""What an Xid, the driver's error event, asks for: NVIDIA's catalogue of immediate actions, by kind. Pure data.

Numbers that the catalogue does not know, or answers with support or a workflow, are told and change nothing.
"""

from enum import StrEnum


class XidAction(StrEnum):
    """APP: the job that caused it should be started anew, the GPU is well. RESET, REBOOT: no new work until then."""

    APP = "app"
    IGNORE = "ignore"
    RESET = "reset"
    REBOOT = "reboot"
    SUPPORT = "support"


_APP = frozenset(
    {8, 11, 13, 25, 31, 32, 39, 40, 41, 45, 60, *range(68, 73), 75, 76, 77, 80, *range(82, 87), 88, 89, 94}
    | {*range(96, 106), *range(126, 136), 139}
)
_IGNORE = frozenset({14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161})
# 48 (double bit ECC error) has a workflow that ends in a reset; 171 and 172 are its details.
_RESET = frozenset({46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158, 171, 172})
_REBOOT = frozenset({79, 151})

_WORDS = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "preemptive cleanup after earlier errors",
    48: "double bit ECC error",
    62: "internal micro-controller halt",
    63: "memory row remapped",
    64: "memory row could not be remapped",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high single bit ECC error rate",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timeout",
    119: "GSP firmware timeout",
    120: "GSP firmware error",
    140: "unrecovered ECC error",
    154: "recovery action changed",
}


def xid_action(xid: int) -> XidAction:
    for action, numbers in (
        (XidAction.APP, _APP),
        (XidAction.IGNORE, _IGNORE),
        (XidAction.RESET, _RESET),
        (XidAction.REBOOT, _REBOOT),
    ):
        if xid in numbers:
            return action
    return XidAction.SUPPORT


def xid_words(xid: int) -> str:
    """What it is, in a few words; "see NVIDIA's Xid catalogue" for the rare ones."""
    return _WORDS.get(xid, "see NVIDIA's Xid catalogue")
