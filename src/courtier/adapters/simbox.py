"""A simulated box: GPUs whose readings follow from the jobs that really run on them.

Memory rises when a job's process runs, to what the job says it uses (its declared size, or most of the
card, without that), and falls to the baseline when the last process of its tree has ended. Must never
show memory that no living attempt explains.
"""

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from courtier.domain.attempts import AttemptKey
from courtier.domain.devices import Device, Reading
from courtier.domain.models import MIB, MODELS, Model
from courtier.engine.ports import PortError

_PART = re.compile(r"^(\d{1,4})x(.+)$")
_NAMESPACE = uuid.UUID("6f1f6a52-0d5c-4a57-9d52-0a6c1f6c2d11")
# A process that makes a CUDA context and nothing else takes about this much.
CONTEXT_BYTES = 500 * MIB
TEMPERATURE_IDLE_CELSIUS = 32
TEMPERATURE_BUSY_CELSIUS = 68
DEVICES_MAX = 1024


def parse_models(specification: str) -> list[str]:
    """ "4xA100-40GB+2xL4" -> one model name per GPU. Raises PortError with what can be named."""
    models: list[str] = []
    by_lower = {name.lower(): name for name in MODELS}
    for part in specification.split("+"):
        match = _PART.match(part.strip())
        name = by_lower.get(match.group(2).lower()) if match else None
        if match is None or name is None or int(match.group(1)) < 1:
            raise PortError(
                "simulated_box_unknown",
                f"{part!r} is not COUNTxMODEL with a model of: {', '.join(MODELS)}",
            )
        models += [name] * int(match.group(1))
    if len(models) > DEVICES_MAX:
        raise PortError("simulated_box_unknown", f"{len(models)} GPUs asked for, {DEVICES_MAX} is the most")
    return models


def simulated_devices(specification: str, seed: str) -> tuple[Device, ...]:
    """The GPUs of a specification; `seed` (the home) makes their UUIDs differ between boxes and stay over restarts."""
    models = parse_models(specification)
    uuids = [f"GPU-{uuid.uuid5(_NAMESPACE, f'{seed}/{index}')}" for index in range(len(models))]
    devices = []
    for index, name in enumerate(models):
        model = MODELS[name]
        links = tuple(
            (uuids[other], _link_kind(index, other, models)) for other in range(len(models)) if other != index
        )
        devices.append(
            Device(
                uuid=uuids[index],
                index=index,
                model=name,
                memory_bytes_total=model.memory_bytes_total,
                memory_bytes_reserved=model.memory_bytes_reserved,
                numa_node=_numa(index, len(models)),
                links=links,
            )
        )
    return tuple(devices)


def _numa(index: int, count: int) -> int:
    return 0 if index < (count + 1) // 2 else 1


def _link_kind(one: int, other: int, models: list[str]) -> str:
    if models[one] == models[other] and MODELS[models[one]].nvlink:
        return "nvlink"
    if _numa(one, len(models)) != _numa(other, len(models)):
        return "sys"
    return "pix" if one // 2 == other // 2 else "node"


def simulated_host(specification: str) -> tuple[int, int]:
    """CPUs and memory bytes that a machine with these GPUs would have."""
    models = [MODELS[name] for name in parse_models(specification)]
    return sum(model.cpus_per_gpu for model in models), sum(model.memory_bytes_per_gpu for model in models)


@dataclass(frozen=True, slots=True)
class SimulatedUse:
    """What one attempt takes of one GPU while its process tree lives."""

    key: AttemptKey
    uuid: str
    memory_bytes: int
    utilization_percent: int


class SimulatedTelemetry:
    """Implements engine.ports.Telemetry over the attempts that it is told of."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = {device.uuid: device for device in devices}
        self._uses: dict[AttemptKey, tuple[SimulatedUse, ...]] = {}

    def begin(self, key: AttemptKey, uses: Iterable[SimulatedUse]) -> None:
        """The attempt's process runs."""
        self._uses[key] = tuple(uses)

    def end(self, key: AttemptKey) -> None:
        """The attempt's last process is gone."""
        self._uses.pop(key, None)

    def read(self, uuids: Iterable[str], now_ms: int) -> Sequence[Reading]:
        by_device: dict[str, list[SimulatedUse]] = {}
        for uses in self._uses.values():
            for use in uses:
                by_device.setdefault(use.uuid, []).append(use)
        return [
            _reading(self._devices[uuid], by_device.get(uuid, []), now_ms) for uuid in uuids if uuid in self._devices
        ]


def _reading(device: Device, uses: list[SimulatedUse], now_ms: int) -> Reading:
    room = device.memory_bytes_usable
    tenants = []
    for use in uses:
        taken = min(use.memory_bytes, room)
        room -= taken
        tenants.append((use.key.job_id, taken))
    busy = min(100, sum(use.utilization_percent for use in uses))
    model: Model = MODELS[device.model]
    idle_milliwatts = model.power_watts_max * 150
    return Reading(
        uuid=device.uuid,
        at_ms=now_ms,
        memory_bytes_used=device.memory_bytes_total - room,
        utilization_percent=busy,
        temperature_celsius=TEMPERATURE_IDLE_CELSIUS
        + (TEMPERATURE_BUSY_CELSIUS - TEMPERATURE_IDLE_CELSIUS) * busy // 100,
        power_milliwatts=idle_milliwatts + (model.power_watts_max * 1000 - idle_milliwatts) * busy // 100,
        tenants=tuple(tenants),
    )
