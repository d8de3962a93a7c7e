"""Discovery and telemetry over the fake driver, through the real binding and real worker processes."""

import asyncio
import contextlib
import ctypes.util
import os
import pwd
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from conftest import DEADLINE_SECONDS, alive, wait_until
from courtier.adapters.nvml.discovery import Discovery, DiscoveryStatus, discover, machine_memory_bytes, version_in
from courtier.adapters.nvml.names import model_name
from courtier.adapters.nvml.telemetry import NvmlTelemetry
from courtier.domain.devices import Device, Reading
from nvml import world as nvml_world
from nvml.world import MIB, World, library_environment

GIB = 1 << 30
PATIENCE_SECONDS = 20.0
DEADLINE_MS = 300


def enter(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    enter(monkeypatch, made.environment())
    return made


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def found(status: DiscoveryStatus = DiscoveryStatus.OK, seconds: float = PATIENCE_SECONDS) -> Discovery:
    discovery = discover(seconds)
    assert discovery.status is status, discovery
    return discovery


# Discovery


def test_eight_linked_gpus(world: World) -> None:
    world.add_gpus(8, nvlink=True, cpus=range(12))
    discovery = found()
    assert discovery.driver_version == "580.65.06" and discovery.absent == ()
    assert discovery.text == "8 GPUs, NVIDIA driver 580.65.06."
    first, last = discovery.devices[0], discovery.devices[7]
    assert [device.uuid for device in discovery.devices] == [world.uuid(n) for n in range(8)]
    assert (first.model, first.memory_bytes_total, first.memory_bytes_reserved) == ("A100-80GB", 80 * GIB, 600 * MIB)
    assert (first.index, first.minor, first.pci_bus_id) == (0, 0, "00000000:10:00.0")
    assert (first.numa_node, last.numa_node, first.cpus) == (0, 1, tuple(range(12)))
    assert dict(first.links) == {world.uuid(n): "nvlink" for n in range(1, 8)}


def test_levels_of_the_pcie_tree(world: World) -> None:
    world.add_gpus(5)
    for other, pcie in enumerate(("pix", "pxb", "phb", "node"), start=1):
        world.link(0, other, pcie=pcie)
    world.link(0, 4, nvlinks=1)
    links = dict(found().devices[0].links)
    assert [links[world.uuid(n)] for n in range(1, 5)] == ["pix", "pxb", "phb", "nvlink"]


def test_two_models_in_an_order_that_is_not_that_of_the_minors(world: World) -> None:
    world.add_gpu("Tesla T4", memory_bytes_total=15360 * MIB, minor=3)
    world.add_gpu("NVIDIA H100 PCIe", memory_bytes_total=81559 * MIB, minor=0)
    world.reorder([1, 0])
    assert [(d.index, d.uuid, d.model, d.minor) for d in found().devices] == [
        (0, world.uuid(1), "H100-80GB", 0),
        (1, world.uuid(0), "T4", 3),
    ]


@pytest.mark.parametrize(
    ("name", "mib", "model"),
    [
        ("NVIDIA A100-SXM4-80GB", 81920, "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", 40960, "A100-40GB"),
        ("NVIDIA H100 80GB HBM3", 81559, "H100-80GB"),
        ("NVIDIA H100 NVL", 95830, "H100-NVL-94GB"),
        ("NVIDIA H100 96GB HBM3", 97871, "H100-96GB"),
        ("NVIDIA H100 SXM5 64GB", 65248, "H100-SXM5-64GB"),
        ("NVIDIA GH200 480GB", 97871, "GH200-96GB"),
        ("NVIDIA H200", 143771, "H200-141GB"),
        ("NVIDIA H20", 97871, "H20"),
        ("Tesla V100-SXM2-16GB", 16384, "V100-16GB"),
        ("NVIDIA A10", 24564, "A10"),
        ("NVIDIA A10G", 23028, "A10G"),
        ("NVIDIA L40S", 46068, "L40S"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "RTX-PRO-6000-BSE-96GB"),
        ("NVIDIA GeForce RTX 4090", 24564, "RTX-4090"),
        ("NVIDIA GeForce GTX 1080 Ti", 11264, "GTX-1080-Ti"),
        ("NVIDIA GB10", None, "GB10"),
        ("\\xff\\xfe(", 24564, "xff-xfe"),
        ("", 24564, "unknown"),
    ],
)
def test_names_of_models(name: str, mib: int | None, model: str) -> None:
    assert model_name(name, mib * MIB if mib is not None else None) == model


@pytest.mark.parametrize("code", [nvml_world.GPU_IS_LOST, nvml_world.RESET_REQUIRED, nvml_world.UNKNOWN])
def test_a_gpu_that_fails_leaves_the_others_as_they_were(world: World, code: int) -> None:
    world.add_gpus(4)
    whole = found().devices
    with world.ruled("nvmlDeviceGetHandleByIndex_v2", 1, error=code):
        discovery = found()
    assert [(d.uuid, d.index, d.minor) for d in discovery.devices] == [
        (d.uuid, d.index, d.minor) for d in whole if d.index != 1
    ]
    assert len(discovery.absent) == 1 and discovery.absent[0].startswith("GPU 1 ")
    assert all(uuid != world.uuid(1) for d in discovery.devices for uuid, _ in d.links)


def test_unified_memory(world: World) -> None:
    world.add_gpu("NVIDIA GB10")
    world.set(0, memory_unsupported=1)
    (device,) = found().devices
    assert (device.model, device.unified) == ("GB10", True)
    assert device.memory_bytes_total == machine_memory_bytes()[0]


def test_a_driver_without_the_newer_calls(world: World) -> None:
    world.add_gpus(1)
    for symbol in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetMemoryAffinity"):
        world.rule(symbol, error=nvml_world.FUNCTION_NOT_FOUND)
    (device,) = found().devices
    assert (device.model, device.memory_bytes_reserved, device.unified) == ("A100-80GB", 600 * MIB, False)

    async def scenario() -> None:
        async with telemetry((device,)) as desk:
            assert (await desk.reading(device.uuid)).temperature_celsius == 30

    asyncio.run(scenario())


def test_mig_mode(world: World) -> None:
    world.add_gpus(2)
    world.set(0, mig_mode=1)
    world.add_mig(0, "3g.40gb", 1, 40 * GIB)
    assert [device.mig for device in found().devices] == [True, False]


def test_garbage_in_every_string(world: World) -> None:
    world.add_gpus(2)
    for symbol in ("nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3", "nvmlSystemGetDriverVersion"):
        world.rule(symbol, garbage=True)
    devices = found().devices
    assert len({device.uuid for device in devices}) == 2
    assert all(text.isprintable() for d in devices for text in (d.uuid, d.model))


def test_garbled_uuids_are_found_again_by_their_place(world: World) -> None:
    world.add_gpus(2)
    world.rule("nvmlDeviceGetUUID", garbage=True)
    devices = found().devices
    world.set(1, temperature_celsius=77)

    async def scenario() -> None:
        async with telemetry(devices) as desk:
            reading = await desk.reading(devices[1].uuid)
            assert (reading.fault, reading.temperature_celsius) == (None, 77)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("code", "status", "word"),
    [
        (nvml_world.DRIVER_NOT_LOADED, DiscoveryStatus.DRIVER_NOT_LOADED, "modprobe"),
        (nvml_world.LIB_RM_VERSION_MISMATCH, DiscoveryStatus.DRIVER_LIBRARY_MISMATCH, "Reboot"),
        (nvml_world.NO_PERMISSION, DiscoveryStatus.NO_PERMISSION, "/dev/nvidiactl"),
        (nvml_world.UNKNOWN, DiscoveryStatus.FAILED, "Unknown Error (NVML error 999)"),
    ],
)
def test_a_driver_that_refuses(world: World, code: int, status: DiscoveryStatus, word: str) -> None:
    world.raw.init_error = code
    assert word in found(status).text


@pytest.mark.parametrize(
    ("folder", "status"),
    [
        ("none", DiscoveryStatus.NO_LIBRARY),
        ("broken", DiscoveryStatus.NO_LIBRARY),
        ("stub", DiscoveryStatus.STUB_LIBRARY),
    ],
)
def test_libraries_that_are_none(monkeypatch: pytest.MonkeyPatch, folder: str, status: DiscoveryStatus) -> None:
    if folder == "none" and ctypes.util.find_library("nvidia-ml"):
        pytest.skip("this machine has a real NVIDIA library, which is found where no other is")
    enter(monkeypatch, library_environment(folder))
    assert "libnvidia-ml.so" in found(status).text


@pytest.mark.parametrize("symbol", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_a_hang_at_the_start_ends_within_the_deadline(world: World, symbol: str) -> None:
    world.add_gpus(1)
    world.rule(symbol, hang=True)
    began = time.monotonic()
    discovery = found(DiscoveryStatus.HUNG, seconds=1.0)
    assert time.monotonic() - began < 1.5
    assert "did not answer within 1 s" in discovery.text


@pytest.mark.parametrize("symbol", ["nvmlDeviceGetName", "nvmlDeviceGetTopologyCommonAncestor"])
def test_one_gpu_that_hangs_at_discovery_leaves_the_others(world: World, symbol: str) -> None:
    world.add_gpus(3)
    world.rule(symbol, 1, hang=True)
    discovery = found(seconds=2.0)
    uuids = {device.uuid for device in discovery.devices}
    assert {world.uuid(0), world.uuid(2)} <= uuids
    assert (world.uuid(1) in uuids) == (symbol != "nvmlDeviceGetName") == (discovery.absent == ())


def test_the_kernel_says_its_version_in_two_wordings() -> None:
    closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:16:18 UTC 2025\nGCC version:\n"
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  (dvs-builder)\n"
    assert (version_in(closed), version_in(opened), version_in("?")) == ("580.65.06", "575.57.08", None)


# Telemetry


class Desk:
    """The daemon's side of one telemetry: what it was told."""

    def __init__(self, devices: Sequence[Device], jobs: dict[int, int], **settings: Any) -> None:
        self.heard: list[Reading] = []
        self.told = asyncio.Event()
        settings.setdefault("deadline_ms", int(PATIENCE_SECONDS * 1000))
        self.nvml = NvmlTelemetry(devices, self._report, jobs.get, **settings)
        self.uuids = [device.uuid for device in devices]

    def _report(self, readings: Sequence[Reading]) -> None:
        self.heard += readings
        self.told.set()

    async def until(self, condition: Callable[[], Any], what: str = "the readings") -> Any:
        """The first true answer; looked at whenever a reading comes."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not (answer := condition()):
                self.told.clear()
                await self.told.wait()
            return answer

    async def reading(self, uuid: str) -> Reading:
        """A reading that was asked for now."""
        seen = len(self.heard)
        self.nvml.request([uuid])
        return await self.until(lambda: next((r for r in self.heard[seen:] if r.uuid == uuid), None))

    async def reading_with(self, uuid: str, right: Callable[[Reading], bool]) -> Reading:
        """Asks until a reading is right."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not right(reading := await self.reading(uuid)):
                pass
            return reading


@contextlib.asynccontextmanager
async def telemetry(
    devices: Sequence[Device], jobs: dict[int, int] | None = None, **settings: Any
) -> AsyncIterator[Desk]:
    desk = Desk(devices, jobs or {}, **settings)
    desk.nvml.open()
    try:
        yield desk
    finally:
        desk.nvml.close()


def test_a_reading_has_what_the_driver_says(world: World, sleeper: subprocess.Popen[bytes]) -> None:
    world.add_gpus(2)
    world.set(1, utilization_percent=91, temperature_celsius=64, power_milliwatts=312_000, memory_bytes_extra=GIB)
    world.process(1, sleeper.pid, 7 * GIB)
    world.process(1, os.getpid(), 2 * GIB)
    world.process(1, os.getpid(), 2 * GIB, kind="graphics")  # in two lists, and still 2 GiB
    world.process(1, os.getppid(), None)

    async def scenario() -> Reading:
        async with telemetry(found().devices, {os.getpid(): 12}) as desk:
            return await desk.reading(world.uuid(1))

    reading = asyncio.run(scenario())
    assert reading.memory_bytes_used == 12 * GIB + 600 * MIB
    assert (reading.utilization_percent, reading.temperature_celsius, reading.power_milliwatts) == (91, 64, 312_000)
    assert reading.tenants == ((12, 2 * GIB),) and reading.fault is None and reading.xids == ()
    sleep, parent = reading.external
    assert (sleep.pid, sleep.user, sleep.command) == (sleeper.pid, pwd.getpwuid(os.getuid()).pw_name, "sleep 600")
    assert sleep.memory_bytes == 7 * GIB
    assert (parent.pid, parent.memory_bytes) == (os.getppid(), None)


def test_a_job_has_the_sum_of_its_processes(world: World) -> None:
    world.add_gpus(1)
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    try:
        for process in processes:
            world.process(0, process.pid, GIB)

        async def scenario() -> None:
            jobs = {process.pid: 5 + (process is processes[2]) for process in processes}
            async with telemetry(found().devices, jobs) as desk:
                assert (await desk.reading(world.uuid(0))).tenants == ((5, 2 * GIB), (6, GIB))
                processes[0].kill()
                processes[0].wait()
                reading = await desk.reading(world.uuid(0))
                assert reading.tenants == ((5, GIB), (6, GIB)) and reading.external == ()

        asyncio.run(scenario())
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_pid_of_another_namespace_is_nobody_here(
    world: World, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("courtier.adapters.nvml.external.in_first_namespace", lambda: False)
    world.add_gpus(1)
    world.process(0, sleeper.pid, GIB)
    # Above the kernel's own limit, so that no process can come to have it meanwhile.
    stranger = (1 << 22) + 7
    world.process(0, stranger, 3 * GIB, phantom=True)

    async def scenario() -> None:
        async with telemetry(found().devices, {sleeper.pid: 3, stranger: 4}) as desk:
            first = await desk.reading(world.uuid(0))
            assert first.tenants == ((3, GIB),) and not desk.nvml.attribution_unavailable
            assert [(p.pid, p.user, p.command, p.memory_bytes) for p in first.external] == [
                (stranger, None, None, 3 * GIB)
            ]
            # Seen twice, it is no process that has just ended: numbers mean something else here.
            second = await desk.reading(world.uuid(0))
            assert second.tenants == () and desk.nvml.attribution_unavailable
            assert {(p.pid, p.user, p.command) for p in second.external} == {
                (sleeper.pid, None, None),
                (stranger, None, None),
            }

    asyncio.run(scenario())


def test_metrics_fail_alone(world: World) -> None:
    world.add_gpus(1)
    world.rule("nvmlDeviceGetPowerUsage", error=nvml_world.NOT_SUPPORTED)
    world.rule("nvmlDeviceGetTemperatureV", error=nvml_world.UNKNOWN)
    for symbol in ("Compute", "Graphics", "MPSCompute"):
        world.rule(f"nvmlDeviceGet{symbol}RunningProcesses_v3", error=nvml_world.NOT_SUPPORTED)

    async def scenario() -> None:
        async with telemetry(found().devices) as desk:
            reading = await desk.reading(world.uuid(0))
            assert (reading.power_milliwatts, reading.temperature_celsius, reading.fault) == (None, None, None)
            assert (reading.utilization_percent, reading.memory_bytes_used) == (0, 600 * MIB)
            assert desk.nvml.unavailable[world.uuid(0)] == {
                "power_milliwatts": nvml_world.NOT_SUPPORTED,
                "temperature_celsius": nvml_world.UNKNOWN,
                "processes": nvml_world.NOT_SUPPORTED,
            }

    asyncio.run(scenario())


def test_unified_memory_shows_the_machines(world: World) -> None:
    world.add_gpu("NVIDIA GB10")
    world.set(0, memory_unsupported=1)

    async def scenario() -> Reading:
        async with telemetry(found().devices) as desk:
            return await desk.reading(world.uuid(0))

    used = asyncio.run(scenario()).memory_bytes_used
    assert used is not None and 0 < used < machine_memory_bytes()[0]


@pytest.mark.parametrize("code", [nvml_world.GPU_IS_LOST, nvml_world.RESET_REQUIRED])
def test_a_lost_gpu_is_told_of_and_comes_back(world: World, code: int) -> None:
    world.add_gpus(3)

    async def scenario() -> None:
        async with telemetry(found().devices) as desk:
            assert (await desk.reading(world.uuid(1))).fault is None
            with world.ruled("nvmlDeviceGetMemoryInfo", 1, error=code):
                fault = "gpu_lost" if code == nvml_world.GPU_IS_LOST else "gpu_reset_required"
                assert (await desk.reading(world.uuid(1))).fault == fault
                assert (await desk.reading(world.uuid(2))).fault is None
            assert (await desk.reading(world.uuid(1))).fault is None

    asyncio.run(scenario())


def test_a_gpu_taken_out_of_the_enumeration_is_lost_and_no_other_is_taken_for_it(world: World) -> None:
    world.add_gpus(3)
    for number in range(3):
        world.set(number, temperature_celsius=40 + number)

    async def scenario() -> None:
        devices = found().devices
        world.remove(0)
        async with telemetry(devices) as desk:
            assert (await desk.reading(world.uuid(0))).fault == "gpu_lost"
            assert [(await desk.reading(world.uuid(n))).temperature_celsius for n in (1, 2)] == [41, 42]

    asyncio.run(scenario())


def test_a_worker_that_misses_a_gpu_is_renewed(world: World) -> None:
    world.add_gpus(2)

    async def scenario() -> None:
        async with telemetry(found().devices, renew_ms=0) as desk:
            await desk.reading(world.uuid(0))
            before = desk.nvml.worker_pid
            world.lose(1)
            assert (await desk.reading(world.uuid(1))).fault == "gpu_lost"
            world.restore(1)
            assert (await desk.reading(world.uuid(1))).fault is None
            assert desk.nvml.worker_pid != before

    asyncio.run(scenario())


def test_a_hang_on_one_gpu_leaves_the_others_as_quick_as_before(world: World) -> None:
    world.add_gpus(8)
    others = [world.uuid(n) for n in range(8) if n != 3]

    async def scenario() -> None:
        async with telemetry(found().devices, deadline_ms=DEADLINE_MS) as desk:

            async def latencies_ms() -> list[float]:
                taken = []
                for _ in range(60):
                    for uuid in others:
                        began = time.perf_counter()
                        assert (await desk.reading(uuid)).fault is None
                        taken.append((time.perf_counter() - began) * 1000)
                return taken

            await desk.reading(world.uuid(3))
            before = await latencies_ms()
            pid = desk.nvml.worker_pid
            rule = world.rule("nvmlDeviceGetUtilizationRates", 3, hang=True)
            desk.nvml.request([world.uuid(3)])
            during = await latencies_ms()
            # A floor of 20 ms: below it a busy machine's own unrest is larger, and a wait for the hang is 300 ms.
            assert quantile(during) <= max(2 * quantile(before), 20.0)
            hung = await desk.reading(world.uuid(3))
            assert (hung.fault, hung.memory_bytes_used, hung.utilization_percent) == ("gpu_hung", None, None)
            calls = world.calls("nvmlDeviceGetUtilizationRates")
            world.release(rule)
            recovered = await desk.reading_with(world.uuid(3), lambda reading: reading.fault is None)
            assert recovered.utilization_percent == 0
            assert desk.nvml.worker_pid == pid and world.calls("nvmlDeviceGetUtilizationRates") > calls

    asyncio.run(scenario())


def quantile(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def test_requests_in_flight_are_merged_and_a_hang_is_said_once_a_deadline(world: World) -> None:
    world.add_gpus(2)
    uuid = world.uuid(0)

    async def scenario() -> None:
        async with telemetry(found().devices, deadline_ms=DEADLINE_MS) as desk:
            await desk.reading(uuid)
            calls = world.calls("nvmlDeviceGetMemoryInfo")
            rule = world.rule("nvmlDeviceGetPowerUsage", 0, hang=True)
            began = time.monotonic()
            for _ in range(100):
                desk.nvml.request([uuid])
            await desk.until(lambda: [r.fault for r in desk.heard[1:]] == ["gpu_hung"])
            assert time.monotonic() - began >= DEADLINE_MS / 1000
            for _ in range(100):
                desk.nvml.request([uuid])
            await desk.until(lambda: [r.fault for r in desk.heard[1:]] == ["gpu_hung"] * 2)
            assert time.monotonic() - began >= 2 * DEADLINE_MS / 1000
            assert world.calls("nvmlDeviceGetMemoryInfo") == calls + 1
            world.release(rule)
            # It answers again: a fresh look follows by itself.
            await desk.until(lambda: desk.heard[-1].fault is None and desk.heard[-1].power_milliwatts == 60_000)

    asyncio.run(scenario())


@pytest.mark.parametrize("symbol", ["nvmlInitWithFlags", "nvmlDeviceGetMemoryInfo"])
def test_a_worker_that_hangs_whole_is_replaced(world: World, symbol: str) -> None:
    world.add_gpus(2)

    async def scenario() -> None:
        devices = found().devices
        rule = world.rule(symbol, hang=True)
        async with telemetry(devices, deadline_ms=DEADLINE_MS) as desk:
            first = desk.nvml.worker_pid
            assert first is not None
            desk.nvml.request(desk.uuids)
            await desk.until(lambda: {r.uuid for r in desk.heard if r.fault == "gpu_hung"} == set(desk.uuids))
            wait_until(lambda: not alive(first), "the end of the worker that hung")
            assert (await desk.reading(world.uuid(0))).fault == "gpu_hung"
            world.release(rule)
            for uuid in desk.uuids:
                await desk.reading_with(uuid, lambda reading: reading.fault is None)

    asyncio.run(scenario())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_killed_or_stopped_is_replaced(world: World, number: signal.Signals) -> None:
    world.add_gpus(2)

    async def scenario() -> None:
        async with telemetry(found().devices, deadline_ms=DEADLINE_MS) as desk:
            await desk.reading(world.uuid(0))
            first = desk.nvml.worker_pid
            assert first is not None
            os.kill(first, number)
            desk.nvml.request(desk.uuids)
            for uuid in desk.uuids:
                await desk.reading_with(uuid, lambda reading: reading.fault is None)
            assert desk.nvml.worker_pid != first and not alive(first)

    asyncio.run(scenario())


def test_no_more_than_two_workers_that_cannot_be_killed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add_gpus(1)
    left: list[Any] = []

    def cannot(worker: Any) -> None:
        worker.connection.close()
        left.append(worker)

    async def scenario() -> None:
        devices = found().devices
        monkeypatch.setattr("courtier.adapters.nvml.spawn.WorkerProcess.kill", cannot)
        monkeypatch.setattr("courtier.adapters.nvml.spawn.WorkerProcess.gone", lambda worker: False)
        rule = world.rule("nvmlDeviceGetMemoryInfo", hang=True)
        async with telemetry(devices, deadline_ms=50) as desk:
            for _ in range(40):
                assert (await desk.reading(world.uuid(0))).fault == "gpu_hung"
            assert len(left) == 2 and desk.nvml.worker_pid is None
        world.release(rule)
        monkeypatch.undo()
        for worker in left:
            worker.kill()
            assert worker.gone_within(10)

    asyncio.run(scenario())


def test_an_answer_that_was_on_its_way_does_not_count_against_the_next_worker(world: World) -> None:
    """Asked while no worker was there, told of it once the next one has begun: that one is left alone."""
    world.add_gpus(2)

    async def scenario() -> None:
        async with telemetry(found().devices) as desk:
            first = desk.nvml.worker_pid
            assert first is not None and (await desk.reading(world.uuid(0))).fault is None
            world.raw.init_error = nvml_world.LIB_RM_VERSION_MISMATCH
            os.kill(first, signal.SIGKILL)
            await desk.reading_with(world.uuid(1), lambda r: r.fault == "driver_mismatch")
            while desk.nvml.worker_pid is not None:
                await desk.reading(world.uuid(1))
            world.raw.init_error = 0
            desk.nvml.request([world.uuid(1)])
            desk.nvml._start()
            begun = desk.nvml.worker_pid
            assert begun is not None
            await desk.until(lambda: desk.heard[-1].fault is None)
            assert desk.nvml.worker_pid == begun

    asyncio.run(scenario())


def test_the_driver_is_updated_under_a_running_daemon(world: World) -> None:
    world.add_gpus(2)

    async def scenario() -> None:
        async with telemetry(found().devices) as desk:
            first = desk.nvml.worker_pid
            assert first is not None and (await desk.reading(world.uuid(0))).fault is None
            world.raw.init_error = nvml_world.LIB_RM_VERSION_MISMATCH
            os.kill(first, signal.SIGKILL)
            # The refusal is told at once: the deadline of this desk is longer than the test's patience.
            assert (await desk.reading_with(world.uuid(1), lambda r: r.fault is not None)).fault == "driver_mismatch"
            assert (await desk.reading(world.uuid(1))).fault == "driver_mismatch"
            world.raw.init_error = 0
            assert (await desk.reading_with(world.uuid(1), lambda r: r.fault is None)).memory_bytes_used == 600 * MIB

    asyncio.run(scenario())


def test_xids_come_with_the_next_reading_unasked_and_once(world: World) -> None:
    world.add_gpus(2)

    async def scenario() -> None:
        async with telemetry(found().devices) as desk:
            await desk.reading(world.uuid(1))
            await asyncio.to_thread(wait_until, lambda: world.calls("nvmlEventSetWait_v2"), "the wait for events")
            world.xid(1, 31)
            await desk.until(lambda: [r.xids for r in desk.heard if r.xids] == [(31,)])
            assert desk.heard[-1].uuid == world.uuid(1)
            assert (await desk.reading(world.uuid(1))).xids == ()
            # A lost GPU takes nobody else's events along.
            sets = world.calls("nvmlEventSetCreate")
            world.xid(0, 79)
            world.lose(0)
            await desk.until(
                lambda: [(r.xids, r.fault) for r in desk.heard if r.uuid == world.uuid(0)] == [((79,), "gpu_lost")]
            )
            await asyncio.to_thread(wait_until, lambda: world.calls("nvmlEventSetCreate") > sets, "a set without it")
            world.xid(1, 48)
            await desk.until(
                lambda: [r.xids for r in desk.heard if r.uuid == world.uuid(1) and r.xids] == [(31,), (48,)]
            )

    asyncio.run(scenario())


def test_garbage_reaches_nobody(world: World, sleeper: subprocess.Popen[bytes]) -> None:
    world.add_gpus(1)
    odd = subprocess.Popen([b"sh", b"-c", b"sleep 600; :", b"\xff\xfe\n\x1b[31m"])
    try:
        world.process(0, odd.pid, GIB)

        async def scenario() -> None:
            async with telemetry(found().devices) as desk:
                reading = await desk.reading(world.uuid(0))
                command = reading.external[0].command
                assert command is not None and command.startswith("sh -c sleep 600; : \\xff\\xfe")
                assert command.isprintable()

        asyncio.run(scenario())
    finally:
        odd.kill()
        odd.wait()


def test_mig_mode_has_no_utilization_but_its_processes(world: World, sleeper: subprocess.Popen[bytes]) -> None:
    world.add_gpus(1)
    world.set(0, mig_mode=1)
    world.process(0, sleeper.pid, GIB, gpu_instance=1)
    world.process(0, sleeper.pid, 2 * GIB, gpu_instance=9)

    async def scenario() -> None:
        async with telemetry(found().devices) as desk:
            reading = await desk.reading(world.uuid(0))
            assert (reading.utilization_percent, reading.fault) == (None, None)
            assert [p.memory_bytes for p in reading.external] == [3 * GIB]

    asyncio.run(scenario())


def test_a_worker_dies_with_its_owner(world: World) -> None:
    world.add_gpus(1)
    world.rule("nvmlDeviceGetMemoryInfo", hang=True)
    program = """
import asyncio, sys
from courtier.adapters.nvml.telemetry import NvmlTelemetry
from courtier.domain.devices import Device
async def main():
    telemetry = NvmlTelemetry([Device(sys.argv[1], 0, "A100-80GB", 1, 0, None)], print, lambda pid: None)
    telemetry.open()
    telemetry.request([sys.argv[1]])
    print(telemetry.worker_pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    owner = subprocess.Popen([sys.executable, "-c", program, world.uuid(0)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    worker = int(owner.stdout.readline())
    wait_until(lambda: world.calls("nvmlDeviceGetMemoryInfo"), "the call that hangs")
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not alive(worker), "the worker's end")
