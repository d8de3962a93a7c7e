"""The world behind the fake NVIDIA library: built here, changed here while other processes look at it.

    world = World(folder)
    world.add_gpus(8, nvlink=True)
    subprocess.run([...], env={**os.environ, **world.environment()})

GPUs are numbered from 0 in the order in which they were added; the driver's index is the place in `order`, which
changes when one is taken out. Nothing here runs in the process under test: that one loads the real nvidia-ml-py.
"""

import atexit
import contextlib
import ctypes
import functools
import importlib.util
import mmap
import os
import re
import shutil
import subprocess
import tempfile
import uuid as uuids
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nvml import layout
from nvml.layout import PROCESS_KINDS, RULE_ALL, RULE_SYSTEM, WorldLayout

HERE = Path(__file__).resolve().parent
LIBRARY = "libnvidia-ml.so.1"
MIB = 1 << 20
UNKNOWN_BYTES = (1 << 64) - 1
MIG_UNSUPPORTED = (1 << 32) - 1
# The return codes that tests speak of, by the names of nvml.h without their prefix.
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND = 3, 4, 9, 13
GPU_IS_LOST, RESET_REQUIRED, LIB_RM_VERSION_MISMATCH, UNKNOWN = 15, 16, 18, 999
# Levels of the PCIe tree between two GPUs, as NVML numbers them.
PCIE_LEVELS = {"pix": 10, "pxb": 20, "phb": 30, "node": 40, "sys": 50}
NVLINKS_OF_A_PAIR = 2


def pynvml_symbols() -> set[str]:
    """Every C symbol that the installed nvidia-ml-py may ask for."""
    found = importlib.util.find_spec("pynvml")
    assert found is not None and found.origin is not None, "nvidia-ml-py is not installed"
    return set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"', Path(found.origin).read_text()))


def _stubs(real: str) -> str:
    """C for the symbols that `real` does not define: each answers "not supported", and obeys the rules."""
    defined = set(re.findall(r"(nvml[A-Z]\w+)\(", real)) | set(re.findall(r"FIELD\((nvml\w+)", real))
    answers = [
        f'int {name}(void *handle) {{ static void *s; return fake_default("{name}", &s, handle); }}\n'
        for name in sorted(pynvml_symbols() - defined)
    ]
    return '#include "fake_nvml.h"\n' + "".join(answers)


@functools.cache
def build() -> Path:
    """Compiles the libraries once a session: folders `fake`, `stub` (the toolkit's), `none` (empty), `broken`."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) to build the fake NVIDIA library with")
    root = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    (root / "world.h").write_text(layout.c_header())
    (root / "defaults.c").write_text(_stubs((HERE / "fake_nvml.c").read_text()))
    for folder in ("fake", "stub", "none", "broken"):
        (root / folder).mkdir()
    (root / "broken" / LIBRARY).write_bytes(b"")
    for folder, sources in (
        ("fake", [HERE / "fake_nvml.c", root / "defaults.c"]),
        ("stub", [HERE / "stub_nvml.c"]),
    ):
        flags = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", f"-Wl,-soname,{LIBRARY}"]
        subprocess.run(
            ["cc", *flags, f"-I{root}", f"-I{HERE}", "-o", root / folder / LIBRARY, *sources], check=True, timeout=60
        )
    return root


def library_environment(folder: str) -> dict[str, str]:
    """What makes a process load the library of one of build()'s folders."""
    inherited = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": ":".join([str(build() / folder), *([inherited] if inherited else [])])}


def start_time(pid: int) -> int:
    """Field 22 of /proc/PID/stat. Raises FileNotFoundError."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])


class World:
    """One machine's GPUs, in a file of its own."""

    def __init__(self, folder: Path, driver_version: str = "580.65.06") -> None:
        self.path = folder / f"nvml-world-{uuids.uuid4().hex}"
        self.path.write_bytes(bytes(ctypes.sizeof(WorldLayout)))
        with self.path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.raw = WorldLayout.from_buffer(self._map)
        self.raw.driver_version = driver_version.encode()
        self.raw.nvml_version = f"13.{driver_version}".encode()
        self.raw.cuda_version = 13000
        self.raw.bytes = ctypes.sizeof(WorldLayout)
        self.raw.magic = layout.MAGIC

    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to see this world."""
        return {**library_environment("fake"), "FAKE_NVML_WORLD": str(self.path)}

    def add_gpu(
        self,
        name: str = "NVIDIA A100-SXM4-80GB",
        *,
        memory_bytes_total: int = 81920 * MIB,
        memory_bytes_reserved: int = 600 * MIB,
        uuid: str | None = None,
        minor: int | None = None,
        pci_bus_id: str | None = None,
        numa_node: int = 0,
        cpus: Sequence[int] = (),
        mig_mode: int = 0,
    ) -> int:
        """A card more, at the end of the enumeration. The answer is its number."""
        number = int(self.raw.gpu_count)
        gpu = self.gpu(number)
        gpu.name = name.encode()
        gpu.uuid = (uuid or f"GPU-{uuids.uuid5(uuids.NAMESPACE_OID, str(number))}").encode()
        gpu.serial = f"165{number:010}".encode()
        gpu.pci_bus_id = (pci_bus_id or f"00000000:{0x10 + number:02X}:00.0").encode()
        gpu.minor = number if minor is None else minor
        gpu.numa_node = numa_node
        gpu.mig_mode = mig_mode
        gpu.memory_bytes_total, gpu.memory_bytes_reserved = memory_bytes_total, memory_bytes_reserved
        gpu.temperature_celsius, gpu.power_milliwatts, gpu.power_milliwatts_max = 30, 60_000, 400_000
        gpu.clock_sm_mhz, gpu.clock_memory_mhz = 1410, 1593
        for cpu in cpus:
            gpu.cpu_affinity[cpu // 64] |= 1 << cpu % 64
        for other in range(number):
            self.link(number, other, pcie="sys" if self.gpu(other).numa_node != numa_node else "node")
        self.raw.gpu_count = number + 1
        self.raw.order[self.raw.order_count] = number
        self.raw.order_count += 1
        return number

    def add_gpus(self, count: int, *, nvlink: bool = False, **fields: Any) -> list[int]:
        """Several of one kind: half of them on each socket, two on a PCIe switch."""
        numbers = [self.add_gpu(numa_node=int(place >= count / 2), **fields) for place in range(count)]
        for one in numbers:
            for other in numbers[:one]:
                pcie = "pix" if one // 2 == other // 2 else None
                self.link(one, other, pcie=pcie, nvlinks=NVLINKS_OF_A_PAIR if nvlink else 0)
        return numbers

    def gpu(self, number: int) -> layout.Gpu:
        """The card itself: what is assigned to its fields is what others see."""
        return self.raw.gpus[number]  # type: ignore[no-any-return]

    def set(self, number: int, **fields: int) -> None:
        for name, value in fields.items():
            assert hasattr(layout.Gpu, name), name
            setattr(self.gpu(number), name, value)

    def uuid(self, number: int) -> str:
        return self.gpu(number).uuid.decode()  # type: ignore[no-any-return]

    def link(self, one: int, other: int, *, pcie: str | None = None, nvlinks: int | None = None) -> None:
        """How two GPUs reach each other, both ways."""
        for a, b in ((one, other), (other, one)):
            if pcie is not None:
                self.raw.level[a][b] = PCIE_LEVELS[pcie]
            if nvlinks is not None:
                self.raw.nvlinks[a][b] = nvlinks

    def reorder(self, numbers: Sequence[int]) -> None:
        """The enumeration from now on; a GPU that is left out is not there for the driver."""
        self.raw.order_count = 0
        for index, number in enumerate(numbers):
            self.raw.order[index] = number
        self.raw.order_count = len(numbers)

    def remove(self, number: int) -> None:
        """Takes a GPU out of the enumeration: the indices behind it move."""
        self.reorder([n for n in self.raw.order[: self.raw.order_count] if n != number])

    def lose(self, number: int) -> None:
        self.gpu(number).lost = 1

    def restore(self, number: int) -> None:
        self.gpu(number).lost = 0

    def process(
        self,
        gpu: int,
        pid: int,
        memory_bytes: int | None,
        *,
        kind: str = "compute",
        phantom: bool = False,
        gpu_instance: int = (1 << 32) - 1,
    ) -> None:
        """Puts a living process on a GPU until it dies; None: the driver does not say its memory.

        A phantom is listed whatever /proc says, as a process of another pid namespace is.
        """
        entry = layout.Process(
            gpu=gpu,
            pid=pid,
            start_time=0 if phantom else start_time(pid),
            memory_bytes=UNKNOWN_BYTES if memory_bytes is None else memory_bytes,
            kind=PROCESS_KINDS.index(kind),
            phantom=phantom,
            gpu_instance=gpu_instance,
            compute_instance=gpu_instance,
        )
        count = int(self.raw.process_count)
        free = [place for place in range(count) if self.raw.processes[place].pid == 0]
        place = free[0] if free else count
        self.raw.processes[place] = entry
        self.raw.process_count = max(count, place + 1)

    def forget(self, pid: int) -> None:
        """Takes a process off all GPUs."""
        for place in range(self.raw.process_count):
            if self.raw.processes[place].pid == pid:
                self.raw.processes[place] = layout.Process()

    def add_mig(self, gpu: int, profile: str, gpu_instance: int, memory_bytes: int) -> str:
        """A MIG device on a GPU whose MIG mode is on. The answer is its UUID."""
        place = int(self.raw.mig_count)
        index = sum(1 for mig in self.raw.migs[:place] if mig.gpu == gpu)
        uuid = f"MIG-{uuids.uuid5(uuids.NAMESPACE_OID, f'mig {place}')}"
        self.raw.migs[place] = layout.Mig(
            uuid=uuid.encode(),
            name=self.gpu(gpu).name + b" MIG " + profile.encode(),
            gpu=gpu,
            index=index,
            gpu_instance=gpu_instance,
            slices=int(profile[0]),
            present=1,
            memory_bytes_total=memory_bytes,
        )
        self.raw.mig_count = place + 1
        return uuid

    def xid(self, gpu: int, code: int) -> None:
        """An error event, seen by whoever has registered for the GPU."""
        self.raw.xids[self.raw.xids_written % layout.XIDS_MAX] = layout.Xid(gpu=gpu, code=code)
        self.raw.xids_written += 1

    def rule(
        self,
        symbol: str,
        gpu: int | None = None,
        *,
        error: int = 0,
        delay_ms: int = 0,
        hang: bool = False,
        garbage: bool = False,
        call: int = 0,
        system: bool = False,
    ) -> int:
        """Makes a symbol fail, wait, hang or answer broken strings. gpu None: everywhere. The answer names the rule."""
        assert symbol in pynvml_symbols(), f"nvidia-ml-py never calls {symbol}"
        place = int(self.raw.rule_count)
        where = RULE_SYSTEM if system else RULE_ALL if gpu is None else gpu
        self.raw.rules[place] = layout.Rule(
            symbol=symbol.encode(),
            gpu=where,
            error=error,
            delay_ms=delay_ms,
            hang=hang,
            garbage=garbage,
            call=call,
            active=1,
        )
        self.raw.rule_count = place + 1
        return place

    def release(self, rule: int | None = None) -> None:
        """Ends a rule, or all of them; what hangs in it goes on."""
        for place in range(self.raw.rule_count) if rule is None else (rule,):
            self.raw.rules[place].active = 0

    @contextlib.contextmanager
    def ruled(self, symbol: str, gpu: int | None = None, **what: Any) -> Iterator[None]:
        place = self.rule(symbol, gpu, **what)
        try:
            yield
        finally:
            self.release(place)

    def calls(self, symbol: str) -> int:
        """How often a symbol was called since the world began, by all processes."""
        for entry in self.raw.symbols:
            if entry.name == symbol.encode():
                return int(entry.calls)
        return 0

    def calls_all(self) -> int:
        return sum(entry.calls for entry in self.raw.symbols)
