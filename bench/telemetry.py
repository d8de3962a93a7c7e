"""What telemetry of 8 GPUs with 64 processes costs at 1 Hz over the fake NVIDIA library: `python bench/telemetry.py`.

Prints one JSON line: per cent of one core that worker and daemon side take together, and the worker's memory. The
fake's own work is in the worker's figure, as the driver's would be.
"""

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from courtier.adapters.nvml.discovery import discover
from courtier.adapters.nvml.telemetry import NvmlTelemetry
from courtier.domain.devices import Reading
from nvml.world import MIB, World

GPUS, PROCESSES, SECONDS = 8, 64, 20


def cpu_seconds(pid: int) -> float:
    """Time on the CPU of all threads, from the scheduler's own count: ticks miss bursts as short as these."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def own_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def measured(jobs: dict[int, int]) -> dict[str, object]:
    devices = discover(10).devices
    heard: list[Reading] = []

    def report(readings: Sequence[Reading]) -> None:
        heard.extend(readings)

    telemetry = NvmlTelemetry(devices, report, jobs.get)
    telemetry.open()
    worker = telemetry.worker_pid
    assert worker is not None
    uuids = [device.uuid for device in devices]
    telemetry.request(uuids)
    await asyncio.sleep(2)
    heard.clear()
    began, own = cpu_seconds(worker), own_seconds()
    for _ in range(SECONDS):
        telemetry.request(uuids)
        await asyncio.sleep(1)
    worker_percent = (cpu_seconds(worker) - began) * 100 / SECONDS
    daemon_percent = (own_seconds() - own) * 100 / SECONDS
    resident = resident_bytes(worker)
    telemetry.close()
    seen = sum(len(reading.tenants) + len(reading.external) for reading in heard)
    assert len(heard) == GPUS * SECONDS and seen == PROCESSES * SECONDS
    return {
        "figure": "telemetry of 8 GPUs with 64 processes at 1 Hz",
        "value": round(worker_percent + daemon_percent, 2),
        "unit": "percent of one core",
        "worker_percent": round(worker_percent, 2),
        "daemon_percent": round(daemon_percent, 2),
        "worker_resident_mib": round(resident / MIB, 1),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.add_gpus(GPUS, nvlink=True)
        processes = [subprocess.Popen(["sleep", "600"]) for _ in range(PROCESSES)]
        try:
            for number, process in enumerate(processes):
                world.process(number % GPUS, process.pid, 1 << 30)
            os.environ.update(world.environment())
            # Half of them are jobs', the other half other people's.
            jobs = {process.pid: number for number, process in enumerate(processes) if number // GPUS % 2}
            print(json.dumps(asyncio.run(measured(jobs))))
        finally:
            for process in processes:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
