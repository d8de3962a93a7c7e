"""Figures of a broker on real device files of the driver: the fake NVIDIA library, which the real binding loads.

What telemetry costs with many processes, and what a hanging GPU does to everybody else. The fake's own work is in
the figures, as the driver's would be.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from broker import BenchBroker, percentile, timed

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from nvml.world import World

GPUS, PROCESSES, SECONDS = 8, 64, 15
GIB = 1 << 30
CALLS = 200


@contextlib.contextmanager
def machine() -> Iterator[tuple[World, BenchBroker]]:
    """A broker on 8 GPUs, with 64 processes of other people on them."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.add_gpus(GPUS, nvlink=True)
        processes = [subprocess.Popen(["sleep", "3600"]) for _ in range(PROCESSES)]
        try:
            for number, process in enumerate(processes):
                world.process(number % GPUS, process.pid, GIB)
            with BenchBroker(None, world.environment()) as broker:
                yield world, broker
        finally:
            for process in processes:
                process.kill()
                process.wait()


def children(pid: int) -> list[int]:
    """All living descendants."""
    found = []
    for name in Path(f"/proc/{pid}/task").glob("*/children"):
        for word in name.read_text().split():
            found += [int(word), *children(int(word))]
    return found


def cpu_seconds(pids: list[int]) -> float:
    """Time on the CPU of all threads, from the scheduler's own count: ticks miss bursts as short as these."""
    tasks = [task for pid in pids for task in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def telemetry_cost(broker: BenchBroker) -> tuple[float, float]:
    """(per cent of one core for all of Courtier's processes, the daemon's resident MiB)."""
    time.sleep(3)
    pids = [broker.pid, *children(broker.pid)]
    begin, used = time.monotonic(), cpu_seconds(pids)
    time.sleep(SECONDS)
    return 100 * (cpu_seconds(pids) - used) / (time.monotonic() - begin), broker.rss_mib()


def _oldest_ms(broker: BenchBroker, without: int) -> float:
    """Age of the oldest sample of the other GPUs."""
    seen = broker.call("GET", "/v1/gpus")["gpus"]
    return max(time.time() * 1000 - gpu["read_ms"] for gpu in seen if gpu["index"] != without)


def hang_effect(world: World, broker: BenchBroker) -> dict[str, float]:
    """How much slower verbs get at p99, and the others' samples older, while one GPU's driver hangs."""
    found: dict[str, float] = {}
    for name in ("before", "during"):
        if name == "during":
            world.rule("nvmlDeviceGetUtilizationRates", 3, hang=True)
            time.sleep(3)
        calls = timed(lambda: broker.call("GET", "/v1/gpus"), CALLS)
        verbs = timed(lambda: broker.command("gpus"), 20)
        ages = []
        for _ in range(20):
            ages.append(_oldest_ms(broker, 3))
            time.sleep(0.1)
        found |= {f"calls_{name}": percentile(calls, 99), f"verbs_{name}": percentile(verbs, 99)}
        found[f"ages_{name}"] = max(ages)
    world.release()
    return found
