"""The layout of the fake driver's world: one file, mapped by every process that loads the fake library.

The structures here are the only definition; the C header is made from them when the library is built. A field
that C writes while Python writes it too must be a counter that only one of them owns.
"""

import ctypes
from ctypes import c_char, c_int32, c_uint8, c_uint32, c_uint64
from typing import Any

MAGIC = 0x46414B45
GPUS_MAX = 64
PROCESSES_MAX = 1024
MIGS_MAX = 64
XIDS_MAX = 256
RULES_MAX = 128
SYMBOLS_MAX = 512

PROCESS_KINDS = ("compute", "graphics", "mps")
# Where a rule applies: one GPU's number, or one of these.
RULE_ALL = -1
RULE_SYSTEM = -2


class Gpu(ctypes.Structure):
    """One card. lost: it has fallen off the bus; reset_required: it answers with error 16."""

    _fields_ = [
        ("uuid", c_char * 96),
        ("name", c_char * 96),
        ("serial", c_char * 32),
        ("pci_bus_id", c_char * 32),
        ("minor", c_uint32),
        ("numa_node", c_int32),
        ("lost", c_uint32),
        ("memory_unsupported", c_uint32),
        ("mig_mode", c_uint32),
        ("utilization_percent", c_uint32),
        ("utilization_memory_percent", c_uint32),
        ("temperature_celsius", c_uint32),
        ("power_milliwatts", c_uint32),
        ("power_milliwatts_max", c_uint32),
        ("clock_sm_mhz", c_uint32),
        ("clock_memory_mhz", c_uint32),
        ("energy_millijoules", c_uint64),
        ("throttle_reasons", c_uint64),
        ("memory_bytes_total", c_uint64),
        ("memory_bytes_reserved", c_uint64),
        ("memory_bytes_extra", c_uint64),
        ("cpu_affinity", c_uint64 * 16),
    ]


class Process(ctypes.Structure):
    """A process on a GPU; it counts only while its pid with this start time lives, a phantom always."""

    _fields_ = [
        ("gpu", c_uint32),
        ("pid", c_uint32),
        ("start_time", c_uint64),
        ("memory_bytes", c_uint64),
        ("kind", c_uint32),
        ("phantom", c_uint32),
        ("gpu_instance", c_uint32),
        ("compute_instance", c_uint32),
    ]


class Mig(ctypes.Structure):
    """A MIG device of one GPU; `index` is its number there."""

    _fields_ = [
        ("uuid", c_char * 96),
        ("name", c_char * 96),
        ("gpu", c_uint32),
        ("index", c_uint32),
        ("gpu_instance", c_uint32),
        ("compute_instance", c_uint32),
        ("slices", c_uint32),
        ("present", c_uint32),
        ("memory_bytes_total", c_uint64),
    ]


class Xid(ctypes.Structure):
    """An error event of the driver."""

    _fields_ = [("gpu", c_uint32), ("code", c_uint32)]


class Rule(ctypes.Structure):
    """What one symbol does on one GPU. `call` is the only call that it applies to, from 1; 0 is every call."""

    _fields_ = [
        ("symbol", c_char * 64),
        ("gpu", c_int32),
        ("error", c_uint32),
        ("delay_ms", c_uint32),
        ("hang", c_uint32),
        ("garbage", c_uint32),
        ("call", c_uint32),
        ("calls", c_uint32),
        ("active", c_uint32),
    ]


class Symbol(ctypes.Structure):
    """How often a symbol was called, by all processes."""

    _fields_ = [("name", c_char * 64), ("calls", c_uint64)]


class WorldLayout(ctypes.Structure):
    """The whole file. `order` is the enumeration: order[index] is the number of a GPU."""

    _fields_ = [
        ("magic", c_uint32),
        ("bytes", c_uint32),
        ("init_error", c_uint32),
        ("cuda_version", c_uint32),
        ("driver_version", c_char * 80),
        ("nvml_version", c_char * 80),
        ("gpu_count", c_uint32),
        ("order_count", c_uint32),
        ("process_count", c_uint32),
        ("mig_count", c_uint32),
        ("rule_count", c_uint32),
        ("padding", c_uint32),
        ("xids_written", c_uint64),
        ("order", c_uint32 * GPUS_MAX),
        ("level", (c_uint8 * GPUS_MAX) * GPUS_MAX),
        ("nvlinks", (c_uint8 * GPUS_MAX) * GPUS_MAX),
        ("gpus", Gpu * GPUS_MAX),
        ("processes", Process * PROCESSES_MAX),
        ("migs", Mig * MIGS_MAX),
        ("xids", Xid * XIDS_MAX),
        ("rules", Rule * RULES_MAX),
        ("symbols", Symbol * SYMBOLS_MAX),
    ]


_C_TYPES: dict[Any, str] = {
    c_char: "char",
    c_int32: "int32_t",
    c_uint8: "uint8_t",
    c_uint32: "uint32_t",
    c_uint64: "uint64_t",
}


def _declared(name: str, kind: Any) -> str:
    counts = ""
    while hasattr(kind, "_length_"):
        counts += f"[{kind._length_}]"
        kind = kind._type_
    return f"    {_C_TYPES.get(kind, kind.__name__)} {name}{counts};"


def c_header() -> str:
    """The structures in C, with a check of each size."""
    lines = ["#include <stdint.h>", f"#define WORLD_MAGIC {MAGIC:#x}"]
    limits = ("GPUS_MAX", "PROCESSES_MAX", "MIGS_MAX", "XIDS_MAX", "RULES_MAX", "SYMBOLS_MAX")
    lines += [f"#define {name} {globals()[name]}" for name in limits]
    lines += [f"#define RULE_ALL ({RULE_ALL})", f"#define RULE_SYSTEM ({RULE_SYSTEM})"]
    for structure in (Gpu, Process, Mig, Xid, Rule, Symbol, WorldLayout):
        lines.append("typedef struct {")
        lines += [_declared(name, kind) for name, kind in structure._fields_]  # type: ignore[misc]
        lines.append(f"}} {structure.__name__};")
        lines.append(f'_Static_assert(sizeof({structure.__name__}) == {ctypes.sizeof(structure)}, "layout");')
    return "\n".join(lines) + "\n"
