"""GPU models that Courtier can simulate: memory, power and how several are wired in one machine.

Memory is in MiB as the driver reports it (total, reserved); a few per cent depend on the driver.
NVLink models of eight stand on one NVSwitch; PCIe models share a switch in pairs and a socket in halves.
"""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Model:
    """What a card has, whether NVLink joins several, and the CPUs and memory that a machine brings per GPU."""

    memory_bytes_total: int
    memory_bytes_reserved: int
    power_watts_max: int
    nvlink: bool
    cpus_per_gpu: int = 12
    memory_bytes_per_gpu: int = 112 << 30


def _model(total_mib: int, reserved_mib: int, watts: int, *, nvlink: bool) -> Model:
    return Model(total_mib * MIB, reserved_mib * MIB, watts, nvlink)


MODELS: dict[str, Model] = {
    "T4": _model(15360, 450, 70, nvlink=False),
    "L4": _model(23034, 500, 72, nvlink=False),
    "A10": _model(23028, 500, 150, nvlink=False),
    "L40S": _model(46068, 600, 350, nvlink=False),
    "V100-16GB": _model(16384, 350, 300, nvlink=True),
    "V100-32GB": _model(32768, 350, 300, nvlink=True),
    "A30-24GB": _model(24576, 500, 165, nvlink=False),
    "A100-40GB": _model(40960, 600, 400, nvlink=True),
    "A100-80GB": _model(81920, 600, 400, nvlink=True),
    "H100-80GB": _model(81559, 550, 700, nvlink=True),
    "H100-NVL-94GB": _model(95830, 600, 400, nvlink=True),
    "H100-96GB": _model(97871, 600, 700, nvlink=True),
    "GH200-96GB": _model(97871, 600, 900, nvlink=True),
    "GH200-144GB": _model(147456, 700, 900, nvlink=True),
    "H20": _model(97871, 600, 500, nvlink=True),
    "H200-141GB": _model(143771, 700, 700, nvlink=True),
    "B200-180GB": _model(183359, 900, 1000, nvlink=True),
    "GB200-186GB": _model(189471, 900, 1200, nvlink=True),
    "B300-269GB": _model(275456, 1000, 1400, nvlink=True),
    "RTX-PRO-6000-BSE-96GB": _model(97887, 700, 600, nvlink=False),
}


def same_model(asked: str, model: str) -> bool:
    """Whether a user's word means this model: "a100" means any A100, "a100-80gb" only that one."""
    asked, model = asked.lower().replace("_", "-"), model.lower()
    return asked == model or model.startswith(asked + "-") or asked in model.split("-")
