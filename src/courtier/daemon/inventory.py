"""Which GPUs this broker has: asked of the driver at the start, and remembered for the rest of the boot.

A GPU that was there in this boot and is not any more is still listed, as it was: identities do not shift, and its
telemetry says what is wrong with it. Must never remember over a reboot: cards come and go.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from courtier.adapters.nvml.discovery import Discovery, DiscoveryStatus, discover
from courtier.domain.devices import Device

FILE_NAME = "gpus.json"
DISCOVERY_SECONDS_MAX = 10.0


class _Remembered(msgspec.Struct):
    boot_id: str
    devices: list[Device]


@dataclass(frozen=True, slots=True)
class Inventory:
    """devices in the order of their index. text says what was found, or why there is nothing and what to do."""

    devices: tuple[Device, ...]
    status: str
    text: str
    absent: tuple[str, ...] = ()


def take_inventory(home: Path, boot_id: str, found: Discovery | None = None) -> Inventory:
    """Asks the driver, for at most DISCOVERY_SECONDS_MAX, and adds what was here earlier in this boot."""
    found = found if found is not None else discover(DISCOVERY_SECONDS_MAX)
    remembered = _remembered(home, boot_id)
    devices = _joined(found.devices, remembered)
    if found.status is DiscoveryStatus.OK:
        _remember(home, boot_id, devices)
    return Inventory(devices, found.status.value, found.text, found.absent)


def _joined(found: tuple[Device, ...], remembered: list[Device]) -> tuple[Device, ...]:
    """Every GPU once, under the index that it had first; a newcomer takes the first free one."""
    known = {device.uuid: device for device in remembered}
    taken = {device.index for device in remembered}
    devices = [device for device in remembered if all(device.uuid != other.uuid for other in found)]
    for device in found:
        index = device.index
        if device.uuid in known:
            index = known[device.uuid].index
        elif index in taken:
            index = next(number for number in range(len(taken) + 1) if number not in taken)
        taken.add(index)
        devices.append(replace(device, index=index))
    return tuple(sorted(devices, key=lambda device: device.index))


def _remembered(home: Path, boot_id: str) -> list[Device]:
    try:
        kept = msgspec.json.decode((home / FILE_NAME).read_bytes(), type=_Remembered)
    except (OSError, msgspec.DecodeError, ValueError):
        return []
    return kept.devices if kept.boot_id == boot_id else []


def _remember(home: Path, boot_id: str, devices: tuple[Device, ...]) -> None:
    """Best effort: without it only a GPU that is lost at the next start is not listed."""
    temporary = home / f"{FILE_NAME}.new"
    try:
        temporary.write_bytes(msgspec.json.encode(_Remembered(boot_id, list(devices))))
        os.replace(temporary, home / FILE_NAME)
    except OSError:
        return
