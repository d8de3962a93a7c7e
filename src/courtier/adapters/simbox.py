"""A simulated box: which GPUs it has, how they are linked, and what machine brings them.

UUIDs follow from the home and the index, so that they stay over restarts and differ between boxes.
"""

import re
import uuid

from courtier.domain.devices import Device
from courtier.domain.models import MODELS
from courtier.engine.ports import PortError

_PART = re.compile(r"^(\d{1,4})x(.+)$")
_NAMESPACE = uuid.UUID("6f1f6a52-0d5c-4a57-9d52-0a6c1f6c2d11")
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
                minor=index,
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
