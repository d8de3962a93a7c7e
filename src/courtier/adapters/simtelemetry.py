"""Telemetry of a simulated box: it follows from the jobs that really run there, and from drills.

Memory rises when a job's process runs, to what the job says it uses, and falls to the baseline when the last
process of its tree has ended. Must never show memory that no living attempt and no drill explains.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from courtier.domain.attempts import AttemptKey
from courtier.domain.devices import Device, ExternalProcess, Reading
from courtier.domain.models import MIB, MODELS, Model
from courtier.engine.ports import PortError

# A process that makes a CUDA context and nothing else takes about this much.
CONTEXT_BYTES = 500 * MIB
TEMPERATURE_IDLE_CELSIUS = 32
TEMPERATURE_BUSY_CELSIUS = 68
DRILL_USER, DRILL_COMMAND = "drill", "courtier drill external"
# Above the kernel's own limit of pids, so that it can never be somebody's.
DRILL_PID = (1 << 22) + 1
DRILLS = ("lost", "xid", "hang", "external", "overuse", "hot", "memory-not-supported", "driver-mismatch", "restore")


@dataclass(frozen=True, slots=True)
class SimulatedUse:
    """What one attempt takes of one GPU while its process tree lives."""

    key: AttemptKey
    uuid: str
    memory_bytes: int
    utilization_percent: int


@dataclass(slots=True)
class _Trouble:
    """What drills have done to one GPU."""

    lost: bool = False
    hung_until_ms: int = 0
    external_bytes: int = 0
    overuse_bytes: int = 0
    celsius: int | None = None
    memory_hidden: bool = False
    xids: list[int] = field(default_factory=list)


class SimulatedTelemetry:
    """Implements engine.ports.Telemetry over the attempts that it is told of. Answers within the request."""

    def __init__(
        self,
        devices: Sequence[Device],
        report: Callable[[Sequence[Reading]], None],
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._devices = {device.uuid: device for device in devices}
        self._report = report
        self._clock_ms = clock_ms
        self._uses: dict[AttemptKey, tuple[SimulatedUse, ...]] = {}
        self._troubles = {device.uuid: _Trouble() for device in devices}
        self._mismatch = False

    def open(self) -> None:
        """There is nothing to open."""

    def close(self) -> None:
        self._report = lambda _readings: None

    def begin(self, key: AttemptKey, uses: Iterable[SimulatedUse]) -> None:
        """The attempt's process runs."""
        self._uses[key] = tuple(uses)

    def end(self, key: AttemptKey) -> None:
        """The attempt's last process is gone."""
        self._uses.pop(key, None)

    def request(self, uuids: Iterable[str]) -> None:
        now_ms = self._clock_ms()
        by_device: dict[str, list[SimulatedUse]] = {}
        for uses in self._uses.values():
            for use in uses:
                by_device.setdefault(use.uuid, []).append(use)
        readings = [
            self._reading(self._devices[uuid], by_device.get(uuid, []), now_ms)
            for uuid in uuids
            if uuid in self._devices
        ]
        if readings:
            self._report(readings)

    def drill(self, uuid: str, kind: str, value: int | None) -> None:
        """Makes trouble, or ends all of it (restore). value: an Xid, seconds, bytes or degrees. Raises PortError."""
        trouble = self._troubles[uuid]
        match kind, value:
            case "lost", None:
                trouble.lost = True
            case "xid", int(number):
                trouble.xids.append(number)
            case "hang", int(seconds):
                trouble.hung_until_ms = self._clock_ms() + seconds * 1000
            case "external", int(size):
                trouble.external_bytes = size
            case "overuse", int(size):
                trouble.overuse_bytes = size
            case "hot", int(celsius):
                trouble.celsius = celsius
            case "memory-not-supported", None:
                trouble.memory_hidden = True
            case "driver-mismatch", None:
                self._mismatch = True
            case "restore", None:
                self._troubles[uuid] = _Trouble()
                self._mismatch = False
            case _:
                raise PortError("drill_unknown", f"no drill {kind} with {value}: there are {', '.join(DRILLS)}")

    def _reading(self, device: Device, uses: list[SimulatedUse], now_ms: int) -> Reading:
        trouble = self._troubles[device.uuid]
        fault = "driver_mismatch" if self._mismatch else "gpu_lost" if trouble.lost else None
        if now_ms < trouble.hung_until_ms:
            fault = fault or "gpu_hung"
        xids, trouble.xids = tuple(trouble.xids), []
        if fault is not None:
            return Reading(device.uuid, now_ms, None, None, None, None, fault=fault, xids=xids)
        room = device.memory_bytes_usable
        external = min(trouble.external_bytes, room)
        room -= external
        tenants = []
        for use in uses:
            taken = min(use.memory_bytes + trouble.overuse_bytes, room)
            room -= taken
            tenants.append((use.key.job_id, taken))
        busy = min(100, sum(use.utilization_percent for use in uses))
        model: Model = MODELS[device.model]
        idle_milliwatts = model.power_watts_max * 150
        span = TEMPERATURE_BUSY_CELSIUS - TEMPERATURE_IDLE_CELSIUS
        process = ExternalProcess(DRILL_PID, DRILL_USER, DRILL_COMMAND, external)
        return Reading(
            uuid=device.uuid,
            at_ms=now_ms,
            memory_bytes_used=None if trouble.memory_hidden else device.memory_bytes_total - room,
            utilization_percent=busy,
            temperature_celsius=trouble.celsius or TEMPERATURE_IDLE_CELSIUS + span * busy // 100,
            power_milliwatts=idle_milliwatts + (model.power_watts_max * 1000 - idle_milliwatts) * busy // 100,
            tenants=tuple(tenants),
            external=(process,) if external else (),
            xids=xids,
        )
