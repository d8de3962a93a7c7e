"""From what the worker saw of one GPU to a Reading: whose its processes are, and which errors came in between.

Must never attribute a process to a job by a pid that is not this machine's.
"""

from collections.abc import Callable

from courtier.adapters.nvml.discovery import machine_memory_bytes
from courtier.adapters.nvml.external import NOBODY, People
from courtier.adapters.nvml.messages import Seen
from courtier.domain.devices import Device, ExternalProcess, Reading

# Xids kept for one GPU until its next reading; a driver in trouble repeats them by the thousand.
XIDS_MAX = 64


class ReadingMaker:
    """Joins looks, processes and events."""

    def __init__(self, attribute: Callable[[int], int | None], people: People) -> None:
        self._attribute = attribute
        self._people = people
        self._xids: dict[str, list[int]] = {}
        self._tenants: dict[str, set[int]] = {}

    def note_xid(self, uuid: str, code: int) -> None:
        kept = self._xids.setdefault(uuid, [])
        if len(kept) < XIDS_MAX:
            kept.append(code)

    def silent(self, device: Device, fault: str, now_ms: int) -> Reading:
        """The reading of a GPU that gave none."""
        return Reading(
            uuid=device.uuid,
            at_ms=now_ms,
            memory_bytes_used=None,
            utilization_percent=None,
            temperature_celsius=None,
            power_milliwatts=None,
            fault=fault,
            xids=tuple(self._xids.pop(device.uuid, ())),
        )

    def reading(self, device: Device, seen: Seen, now_ms: int) -> Reading:
        tenants, external = self._processes(seen)
        used = seen.memory_bytes_used
        if used is None and device.unified and seen.fault is None:
            total, available = machine_memory_bytes()
            used = total - available
        return Reading(
            uuid=device.uuid,
            at_ms=now_ms,
            memory_bytes_used=used,
            utilization_percent=seen.utilization_percent,
            temperature_celsius=seen.temperature_celsius,
            power_milliwatts=seen.power_milliwatts,
            tenants=tenants,
            external=external,
            fault=seen.fault,
            xids=tuple(self._xids.pop(device.uuid, ())),
        )

    def _processes(self, seen: Seen) -> tuple[tuple[tuple[int, int], ...], tuple[ExternalProcess, ...]]:
        """Jobs with their bytes, and everybody else. A job's process that ended since the look before is neither."""
        listed = seen.processes or []
        living = self._people.living(seen.uuid, [pid for pid, _ in listed])
        foreign = self._people.foreign
        if foreign:
            living = {}
        tenants: dict[int, int] = {}
        external = []
        ours = set()
        before = self._tenants.get(seen.uuid, set())
        for pid, memory_bytes in listed:
            begun = living.get(pid)
            job = self._attribute(pid) if begun is not None else None
            if job is not None:
                ours.add(pid)
                tenants[job] = tenants.get(job, 0) + (memory_bytes or 0)
                continue
            if begun is None and pid in before and not foreign:
                continue
            person = self._people.person(pid, begun) if begun is not None else NOBODY
            external.append(ExternalProcess(pid, person.user, person.command, memory_bytes))
        self._tenants[seen.uuid] = ours
        return tuple(sorted(tenants.items())), tuple(external)
