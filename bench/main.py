"""`make bench`: the promised figures, one JSON line each, with their bars, peers and the machine's load."""

import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise

from broker import BenchBroker, percentile, timed

STARTS = 40
Figure = dict[str, object]


def figure(
    name: str, value: float, unit: str, bar: float, *, at_most: bool = True, runs: int = 1, **more: object
) -> Figure:
    """One line of the result; more may hold peer, peer_value and ratio."""
    return {
        "figure": name,
        "value": round(value, 2),
        "unit": unit,
        "bar": bar,
        "met": value <= bar if at_most else value >= bar,
        "peer": None,
        "peer_value": None,
        "ratio": None,
        **more,
        "runs": runs,
        "load": round(os.getloadavg()[0], 2),
    }


def start_latencies(broker: BenchBroker, runs: int) -> list[float]:
    """Milliseconds from the acknowledgement of a submit to the command's own first act, its clock written down."""
    found = []
    for _ in range(runs):
        job = broker.submit("/bin/date", "+%s%N", gpus=1, priority=1)
        acknowledged = time.time_ns()
        broker.wait(job["id"])
        with open(job["stdout_path"], encoding="ascii") as file:
            found.append((int(file.read()) - acknowledged) / 1e6)
    return found


def starts(broker: BenchBroker) -> list[Figure]:
    start_latencies(broker, 5)
    found = start_latencies(broker, STARTS)
    peer = task_spooler_start()
    more: dict[str, object] = {}
    p50 = statistics.median(found)
    if peer is not None:
        more = {"peer": "task-spooler", "peer_value": round(peer, 2), "ratio": round(p50 / peer, 2)}
    return [
        figure("submit to start p50, idle", p50, "ms", 20, runs=STARTS, **more),
        figure("submit to start p99, idle", percentile(found, 99), "ms", 80, runs=STARTS),
    ]


def starts_behind_queue(broker: BenchBroker) -> list[Figure]:
    holder = broker.submit("sleep", "600", gpus=7)
    waiting = broker.submit("true", gpus=8, array=list(range(1000)))
    found = start_latencies(broker, STARTS)
    broker.call("POST", f"/v1/jobs/{waiting['array_id']}/cancel", {})
    broker.call("POST", f"/v1/jobs/{holder['id']}/cancel", {"now": True})
    broker.wait(holder["id"])
    return [figure("submit to start p99, 1,000 queued", percentile(found, 99), "ms", 250, runs=STARTS)]


def handovers(broker: BenchBroker) -> list[Figure]:
    """From the end of the job that held every GPU to the next one's start."""
    jobs = [broker.submit("sleep", "0.05", gpus=8) for _ in range(STARTS)]
    ended = [broker.wait(job["id"])[0] for job in jobs]
    found = [float(after["started_ms"] - before["finished_ms"]) for before, after in pairwise(ended)]
    return [figure("memory back to next start p50", statistics.median(found), "ms", 30, runs=len(found))]


def drain(broker: BenchBroker) -> list[Figure]:
    rates = []
    for _ in range(3):
        begin = time.perf_counter()
        job = broker.submit("true", gpus=1, array=list(range(1000)))
        broker.wait(job["array_id"])
        rates.append(1000 / (time.perf_counter() - begin))
    return [figure("array of 1,000 drained", statistics.median(rates), "jobs/s", 100, at_most=False, runs=3)]


def commands(broker: BenchBroker) -> list[Figure]:
    submit = statistics.median(timed(lambda: broker.command("submit", "--hold", "-q", "--", "true"), 15))
    ps = statistics.median(timed(lambda: broker.command("ps"), 15))
    for job in broker.call("GET", "/v1/jobs")["jobs"]:
        broker.call("POST", f"/v1/jobs/{job['id']}/cancel", {})
    broker.submit("true", gpus=1, hold=True, array=list(range(10_000)))
    long_submit = statistics.median(timed(lambda: broker.command("submit", "--hold", "-q", "--", "true"), 15))
    long_ps = statistics.median(timed(lambda: broker.command("ps"), 15))
    whole = statistics.median(timed(lambda: broker.command("ps", "-o", "json"), 7))
    return [
        figure("courtier submit, whole command", submit, "ms", 150, runs=15),
        figure("courtier ps, whole command", ps, "ms", 150, runs=15),
        figure("submit with 10,000 queued, against empty", long_submit / submit, "x", 2, runs=15),
        figure("ps with 10,000 queued, against empty", long_ps / ps, "x", 2, runs=15),
        figure("ps -o json of 10,000 queued", whole, "ms", 400, runs=7),
    ]


def idle(broker: BenchBroker) -> list[Figure]:
    begin, used = time.monotonic(), broker.cpu_seconds()
    time.sleep(10)
    percent = 100 * (broker.cpu_seconds() - used) / (time.monotonic() - begin)
    return [
        figure("daemon idle, resident memory", broker.rss_mib(), "MiB", 120),
        figure("daemon idle, CPU of one core", percent, "%", 1),
    ]


def task_spooler_start() -> float | None:
    """Median of task-spooler's own way from submit to start; None where it is not installed."""
    if shutil.which("tsp") is None:
        return None
    folder = tempfile.mkdtemp(prefix="courtier-tsp-")
    environment = {**os.environ, "TS_SOCKET": f"{folder}/socket", "TMPDIR": folder, "TS_SLOTS": "4"}
    found = []
    for number in range(STARTS):
        path = f"{folder}/{number}"
        subprocess.run(
            ["tsp", "sh", "-c", f"exec date +%s%N > {path}"], env=environment, check=True, capture_output=True
        )
        acknowledged = time.time_ns()
        subprocess.run(["tsp", "-w"], env=environment, check=True, capture_output=True)
        with open(path, encoding="ascii") as file:
            found.append((int(file.read()) - acknowledged) / 1e6)
    subprocess.run(["tsp", "-K"], env=environment, check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)
    return statistics.median(found)


def main() -> None:
    groups: list[Callable[[BenchBroker], list[Figure]]] = [
        idle,
        starts,
        handovers,
        starts_behind_queue,
        drain,
        commands,
    ]
    for group in groups:
        with BenchBroker() as broker:
            for line in group(broker):
                print(json.dumps(line), flush=True)
    missing = "slurm-wlm is not started by this bench"
    print(json.dumps({"figure": "submit to start p50, Slurm", "peer": "slurm", "skipped": missing}))


if __name__ == "__main__":
    main()
