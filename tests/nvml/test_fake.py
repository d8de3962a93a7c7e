"""The fake driver is what the real nvidia-ml-py, nvitop and gpustat take for a driver."""

import ctypes.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import wait_until
from nvml import world as nvml_world
from nvml.world import MIB, World, library_environment, pynvml_symbols

GIB = 1 << 30


def asked(environment: dict[str, str], program: str) -> Any:
    """What a Python program prints as JSON, run with that environment."""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


PRELUDE = """
import json
from pynvml import *
nvmlInit()
def said(call, *arguments, **more):
    try:
        return call(*arguments, **more)
    except NVMLError as error:
        return error.value
    except UnicodeDecodeError:
        return "garbage"
devices = [said(nvmlDeviceGetHandleByIndex, index) for index in range(nvmlDeviceGetCount())]
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_every_symbol_of_the_binding_is_exported() -> None:
    program = f"""
import ctypes, json
library = ctypes.CDLL("libnvidia-ml.so.1")
print(json.dumps([name for name in {sorted(pynvml_symbols())!r} if not hasattr(library, name)]))
"""
    assert asked(library_environment("fake"), program) == []


def test_the_binding_sees_identity_memory_and_telemetry(world: World) -> None:
    world.add_gpus(2, cpus=[0, 1, 65])
    world.add_gpu("Tesla T4", memory_bytes_total=15360 * MIB, memory_bytes_reserved=450 * MIB, minor=7, numa_node=-1)
    world.set(1, utilization_percent=83, temperature_celsius=71, power_milliwatts=301_500, energy_millijoules=5 << 40)
    world.set(1, memory_bytes_extra=3 * GIB, throttle_reasons=4)
    seen = asked(
        world.environment(),
        PRELUDE
        + """
print(json.dumps([{
    "name": nvmlDeviceGetName(d), "uuid": nvmlDeviceGetUUID(d), "index": nvmlDeviceGetIndex(d),
    "minor": nvmlDeviceGetMinorNumber(d), "pci": nvmlDeviceGetPciInfo(d).busId,
    "numa": said(lambda d: list(nvmlDeviceGetMemoryAffinity(d, 1, 0)), d),
    "affinity": said(lambda d: list(nvmlDeviceGetCpuAffinity(d, 2)), d), "used_v1": nvmlDeviceGetMemoryInfo(d).used,
    "v2": [getattr(nvmlDeviceGetMemoryInfo(d, nvmlMemory_v2), f) for f in ("total", "reserved", "free", "used")],
    "utilization": nvmlDeviceGetUtilizationRates(d).gpu, "old_temperature": nvmlDeviceGetTemperature(d, 0),
    "temperature": nvmlDeviceGetTemperatureV(d, 0), "power": nvmlDeviceGetPowerUsage(d),
    "energy": nvmlDeviceGetTotalEnergyConsumption(d), "clocks": nvmlDeviceGetCurrentClocksEventReasons(d),
    "ecc": said(nvmlDeviceGetEccMode, d), "wrong_version": said(nvmlDeviceGetMemoryInfo, d, 0x03000028),
} for d in devices]))
""",
    )
    assert seen[1] == {
        "name": "NVIDIA A100-SXM4-80GB",
        "uuid": world.uuid(1),
        "index": 1,
        "minor": 1,
        "pci": "00000000:11:00.0",
        "numa": [2],
        "affinity": [3, 2],
        "used_v1": 3 * GIB + 600 * MIB,
        "v2": [80 * GIB, 600 * MIB, 77 * GIB - 600 * MIB, 3 * GIB],
        "utilization": 83,
        "old_temperature": 71,
        "temperature": 71,
        "power": 301_500,
        "energy": 5 << 40,
        "clocks": 4,
        "ecc": nvml_world.NOT_SUPPORTED,
        "wrong_version": 25,
    }
    assert (seen[2]["name"], seen[2]["minor"], seen[2]["numa"], seen[2]["affinity"]) == ("Tesla T4", 7, 3, 3)


PROCESSES = """
print(json.dumps([[(p.pid, p.usedGpuMemory) for d in devices for p in call(d)] for call in (
    nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses,
    nvmlDeviceGetMPSComputeRunningProcesses)]))
"""


def test_a_process_is_listed_until_it_dies_and_a_phantom_until_it_is_taken_off(
    world: World, sleeper: subprocess.Popen[bytes]
) -> None:
    world.add_gpus(2)
    for _ in range(7):  # more than the five that the binding leaves room for beyond the first answer's count
        world.process(0, sleeper.pid, 4 * GIB)
    world.process(1, sleeper.pid, None, kind="mps")
    world.process(1, 4_000_000, GIB, kind="graphics", phantom=True)
    seen = asked(world.environment(), PRELUDE + PROCESSES)
    assert seen == [[[sleeper.pid, 4 * GIB]] * 7, [[4_000_000, GIB]], [[sleeper.pid, None]]]
    sleeper.kill()
    wait_until(lambda: asked(world.environment(), PRELUDE + PROCESSES) == [[], [[4_000_000, GIB]], []], "its end")
    world.forget(4_000_000)
    assert asked(world.environment(), PRELUDE + PROCESSES) == [[], [], []]


def test_topology(world: World) -> None:
    world.add_gpus(4)
    world.link(0, 3, nvlinks=2)
    seen = asked(
        world.environment(),
        PRELUDE
        + """
a, b, c, d = devices
print(json.dumps([
    [nvmlDeviceGetTopologyCommonAncestor(a, x) for x in (b, c, d)],
    [nvmlDeviceGetP2PStatus(a, x, NVML_P2P_CAPS_INDEX_NVLINK) for x in (b, c, d)],
    [said(nvmlDeviceGetNvLinkState, a, link) for link in range(3)], said(nvmlDeviceGetNvLinkState, b, 0),
    nvmlDeviceGetNvLinkRemotePciInfo(a, 1).busId,
]))
""",
    )
    assert seen == [[10, 50, 50], [5, 5, 0], [1, 1, 0], nvml_world.NOT_SUPPORTED, "00000000:13:00.0"]


def test_a_lost_gpu_fails_alone_and_a_removed_one_shifts_the_others(world: World) -> None:
    world.add_gpus(3)
    ask = PRELUDE + "print(json.dumps([d if isinstance(d, int) else nvmlDeviceGetUUID(d) for d in devices]))"
    world.lose(1)
    assert asked(world.environment(), ask) == [world.uuid(0), nvml_world.GPU_IS_LOST, world.uuid(2)]
    world.restore(1)
    world.remove(1)
    assert asked(world.environment(), ask) == [world.uuid(0), world.uuid(2)]
    world.reorder([2, 1, 0])
    assert asked(world.environment(), ask) == [world.uuid(2), world.uuid(1), world.uuid(0)]


def test_rules_fail_delay_hang_and_garble_one_symbol_on_one_gpu_at_one_call(world: World) -> None:
    world.add_gpus(2)
    world.rule("nvmlDeviceGetPowerUsage", 1, error=nvml_world.UNKNOWN, call=2)
    world.rule("nvmlDeviceGetName", 0, garbage=True)
    world.rule("nvmlDeviceGetTemperatureV", delay_ms=60)
    seen = asked(
        world.environment(),
        PRELUDE
        + """
import time
powers = [[said(nvmlDeviceGetPowerUsage, d) for d in devices] for _ in range(3)]
began = time.monotonic()
nvmlDeviceGetTemperatureV(devices[0], 0)
print(json.dumps([powers, [said(nvmlDeviceGetName, d) for d in devices], time.monotonic() - began]))
""",
    )
    assert seen[0] == [[60_000, 60_000], [60_000, nvml_world.UNKNOWN], [60_000, 60_000]]
    assert seen[1] == ["garbage", "NVIDIA A100-SXM4-80GB"]
    assert seen[2] >= 0.06
    assert world.calls("nvmlDeviceGetPowerUsage") == 6


def test_a_hang_lasts_until_it_is_released(world: World) -> None:
    world.add_gpus(1)
    rule = world.rule("nvmlDeviceGetPowerUsage", 0, hang=True)
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + "print(nvmlDeviceGetPowerUsage(devices[0]))"],
        env={**os.environ, **world.environment()},
        stdout=subprocess.PIPE,
    )
    wait_until(lambda: world.calls("nvmlDeviceGetPowerUsage") == 1, "the call")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.3)
    world.release(rule)
    assert process.communicate(timeout=30)[0] == b"60000\n"


def test_xids_come_through_an_event_set(world: World) -> None:
    world.add_gpus(2)
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            PRELUDE
            + """
events = nvmlEventSetCreate()
nvmlDeviceRegisterEvents(devices[1], nvmlEventTypeXidCriticalError, events)
assert said(nvmlEventSetWait, events, 1) == NVML_ERROR_TIMEOUT
print("ready", flush=True)
seen = [nvmlEventSetWait(events, 20000) for _ in range(2)]
print(json.dumps([[nvmlDeviceGetIndex(c_nvmlDevice_t.from_buffer(e)), e.eventType, e.eventData] for e in seen]))
""",
        ],
        env={**os.environ, **world.environment()},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    for gpu, code in ((0, 31), (1, 79), (1, 48)):
        world.xid(gpu, code)
    assert json.loads(process.communicate(timeout=30)[0]) == [[1, 8, 79], [1, 8, 48]]


def test_mig_devices(world: World) -> None:
    world.add_gpus(2)
    world.set(0, mig_mode=1)
    uuids = [world.add_mig(0, "3g.40gb", 1, 40 * GIB), world.add_mig(0, "1g.10gb", 9, 10 * GIB)]
    seen = asked(
        world.environment(),
        PRELUDE
        + """
migs = [m for m in (said(nvmlDeviceGetMigDeviceHandleByIndex, devices[0], i)
                    for i in range(nvmlDeviceGetMaxMigDeviceCount(devices[0]))) if not isinstance(m, int)]
print(json.dumps([
    [nvmlDeviceGetMigMode(d) for d in devices], [nvmlDeviceGetUUID(m) for m in migs],
    [nvmlDeviceGetMemoryInfo(m).total for m in migs], [nvmlDeviceGetGpuInstanceId(m) for m in migs],
    nvmlDeviceGetIndex(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(migs[1])),
    said(lambda d: nvmlDeviceGetUtilizationRates(d).gpu, devices[0]),
]))
""",
    )
    assert seen == [[[1, 1], [0, 0]], uuids, [40 * GIB, 10 * GIB], [1, 9], 0, nvml_world.NOT_SUPPORTED]


INIT = """
import json
from pynvml import *
try:
    nvmlInit()
    print(0)
except NVMLError as error:
    print(error.value)
"""


@pytest.mark.parametrize("code", [nvml_world.DRIVER_NOT_LOADED, nvml_world.LIB_RM_VERSION_MISMATCH])
def test_init_errors(world: World, code: int) -> None:
    world.raw.init_error = code
    assert asked(world.environment(), INIT) == code


@pytest.mark.parametrize("folder", ["stub", "broken", "none"])
def test_libraries_that_are_none(folder: str) -> None:
    if folder == "none" and ctypes.util.find_library("nvidia-ml"):
        pytest.skip("this machine has a real NVIDIA library, which is found where no other is")
    assert asked(library_environment(folder), INIT) == 12


def shown_world(world: World, pid: int) -> None:
    world.add_gpus(2)
    world.set(1, utilization_percent=42, temperature_celsius=66, power_milliwatts=250_000)
    world.process(1, pid, 5 * GIB)


def test_gpustat_shows_the_same_world(world: World, sleeper: subprocess.Popen[bytes]) -> None:
    shown_world(world, sleeper.pid)
    gpus = asked(
        world.environment(),
        "import json, gpustat; print(json.dumps(gpustat.new_query().jsonify(), default=str))",
    )["gpus"]
    assert [gpu["uuid"] for gpu in gpus] == [world.uuid(0), world.uuid(1)]
    assert gpus[1]["utilization.gpu"] == 42 and gpus[1]["temperature.gpu"] == 66 and gpus[1]["power.draw"] == 250
    assert gpus[1]["memory.used"] == 5 * 1024 and gpus[1]["memory.total"] == 80 * 1024
    assert [(p["pid"], p["command"], p["gpu_memory_usage"]) for p in gpus[1]["processes"]] == [
        (sleeper.pid, "sleep", 5 * 1024)
    ]


def test_nvitop_shows_the_same_world(world: World, sleeper: subprocess.Popen[bytes]) -> None:
    shown_world(world, sleeper.pid)
    seen = asked(
        world.environment(),
        """
import json
from nvitop import Device
print(json.dumps([[d.uuid(), d.name(), d.gpu_utilization(), d.temperature(), d.power_usage(), d.memory_total(),
    d.memory_used(), {pid: p.gpu_memory() for pid, p in d.processes().items()}] for d in Device.all()]))
""",
    )
    used = 5 * GIB
    assert seen[1][:6] == [world.uuid(1), "NVIDIA A100-SXM4-80GB", 42, 66, 250_000, 80 * GIB]
    assert seen[1][6] in (used, used + 600 * MIB) and seen[1][7] == {str(sleeper.pid): used}
    page = subprocess.run(
        [sys.executable, "-m", "nvitop", "--once"],
        env={**os.environ, **world.environment(), "TERM": "xterm", "COLUMNS": "120", "LINES": "50"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    text = page.stdout.decode()
    assert page.returncode == 0, page.stderr.decode()
    assert "580.65.06" in text and str(sleeper.pid) in text and "42%" in text
