"""Whether a request can ever be met by a box: the filters of submit. Each refusal is a reason with its numbers.

Must never look at what is free now: that is selection's question.
"""

from collections.abc import Sequence

from courtier.domain.devices import Box, Device
from courtier.domain.models import same_model
from courtier.domain.reasons import Reason, reason
from courtier.domain.workloads import Request


def gpus_wanted(request: Request) -> int:
    """How many GPUs a request names: memory, a share or a model without a count means one."""
    named = (request.gpu_memory_bytes, request.gpu_milli, request.gpu_model)
    if request.gpus == 0 and any(amount is not None for amount in named):
        return 1
    return request.gpus


def of_model(devices: Sequence[Device], model: str | None) -> list[Device]:
    """The devices that a request's model allows. One that is divided in hardware can not be used as a whole."""
    return [device for device in devices if not device.mig and (model is None or same_model(model, device.model))]


def impossible(request: Request, box: Box) -> Reason | None:
    """The reason why this box can never meet the request, or None."""
    if request.cpus > box.cpus:
        return reason("cpus_exceed_box", cpus=request.cpus, cpus_total=box.cpus)
    if request.memory_bytes is not None and request.memory_bytes > box.memory_bytes:
        return reason("memory_exceeds_box", needed_bytes=request.memory_bytes, total_bytes=box.memory_bytes)
    if request.mig_profile is not None:
        return reason("mig_not_here", profile=request.mig_profile)
    if request.gpu_milli is not None and not 1 <= request.gpu_milli <= 1000:
        return reason("gpu_milli_range", gpu_milli=request.gpu_milli)
    return _gpus_impossible(request, box.devices)


# Levels that a box may offer to a job as a whole, weakest first; partitions and containers are asked for in other ways.
ISOLATION_LEVELS = ("none", "env", "fence")


def isolation_refusal(asked: str | None, box: Box) -> Reason | None:
    """The reason why this box can not isolate a job as asked, or None. `any` takes the best that there is."""
    if asked in (None, "any"):
        return None
    if asked not in ISOLATION_LEVELS:
        return reason(
            "isolation_unavailable", isolation=asked or "", why=f"there are {', '.join(ISOLATION_LEVELS)}, any"
        )
    if ISOLATION_LEVELS.index(asked) <= ISOLATION_LEVELS.index(box.isolation):
        return None
    return reason("isolation_unavailable", isolation=asked, why=box.isolation_reason or f"the best is {box.isolation}")


def _gpus_impossible(request: Request, devices: Sequence[Device]) -> Reason | None:
    wanted = gpus_wanted(request)
    if wanted == 0:
        return None
    fitting = of_model(devices, request.gpu_model)
    divided = sum(1 for device in devices if device.mig)
    if divided and wanted > len(devices) - divided:
        return reason("gpus_divided", gpus=wanted, divided=divided, gpus_total=len(devices))
    if request.gpu_model is not None and not fitting:
        models = ", ".join(sorted({device.model for device in devices})) or "no GPUs at all"
        return reason("gpu_model_unknown", model=request.gpu_model, models=models)
    if wanted > len(devices):
        return reason("gpus_exceed_inventory", gpus=wanted, gpus_total=len(devices))
    if wanted > len(fitting):
        return reason("gpus_of_model_exceed", gpus=wanted, gpus_total=len(fitting), model=str(request.gpu_model))
    needed = request.gpu_memory_bytes
    if needed is None:
        return None
    if request.split:
        return _split_impossible(request, fitting)
    large = [device for device in fitting if device.memory_bytes_usable >= needed]
    if not large:
        largest = max(device.memory_bytes_usable for device in fitting)
        return reason("gpu_memory_exceeds_card", needed_bytes=needed, largest_bytes=largest)
    if wanted > len(large):
        return reason("gpu_memory_too_few_cards", gpus=wanted, needed_bytes=needed, gpus_total=len(large))
    return None


def split_count(request: Request, same_model: Sequence[Device]) -> int:
    """How many GPUs of one model a split request takes: as few as hold its memory, and no fewer than it names."""
    size_bytes = min(device.memory_bytes_usable for device in same_model)
    return max(-(-(request.gpu_memory_bytes or 0) // size_bytes), request.gpus, 1)


def by_model(devices: Sequence[Device]) -> list[list[Device]]:
    """Devices in groups of one model, in the order of their first."""
    groups: dict[str, list[Device]] = {}
    for device in devices:
        groups.setdefault(device.model, []).append(device)
    return list(groups.values())


def _split_impossible(request: Request, devices: Sequence[Device]) -> Reason | None:
    groups = by_model(devices)
    if any(split_count(request, group) <= len(group) for group in groups):
        return None
    needed = request.gpu_memory_bytes or 0
    total = max(sum(device.memory_bytes_usable for device in group) for group in groups)
    if needed > total:
        return reason("gpu_memory_exceeds_box", needed_bytes=needed, total_bytes=total)
    most = max(len(group) for group in groups)
    return reason("gpus_of_model_exceed", gpus=request.gpus, gpus_total=most, model="one model")
