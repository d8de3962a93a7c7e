"""`make bench`: the promised figures, one JSON line each, with their bars, peers and the machine's load."""

import json
import os
import shutil
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

from broker import BenchBroker, percentile, timed
from devices import CALLS, hang_effect, machine, telemetry_cost
from peers import Slurm, TaskSpooler, peers

STARTS = 40
PEER_STARTS = 15
JOBS = 1000
START = "submit to start p50, idle"
DRAIN = "array of 1,000 drained"
START_FENCED = "submit to start p50, level fence"
DRAIN_FENCED = "array of 1,000 drained, level fence"
DEVICE_FIGURES = (
    "telemetry of 8 GPUs with 64 processes at 1 Hz, all processes",
    "daemon with real telemetry, resident memory",
    "GET /v1/gpus p99 while one GPU hangs, against before",
    "courtier gpus p99 while one GPU hangs, against before",
    "oldest sample of the other GPUs while one hangs, against before",
)
Figure = dict[str, object]


def figure(name: str, value: float, unit: str, bar: float, *, at_most: bool = True, runs: int = 1) -> Figure:
    """One line of the result."""
    return {
        "figure": name,
        "value": round(value, 2),
        "unit": unit,
        "bar": bar,
        "met": value <= bar if at_most else value >= bar,
        "peer": None,
        "peer_value": None,
        "ratio": None,
        "runs": runs,
        "load": round(os.getloadavg()[0], 2),
    }


def start_latencies(broker: BenchBroker, runs: int, isolation: str = "env") -> list[float]:
    """Milliseconds from the acknowledgement of a submit to the command's own first act, its clock written down."""
    found = []
    for _ in range(runs):
        job = broker.submit("/bin/date", "+%s%N", gpus=1, priority=1, isolation=isolation)
        acknowledged = time.time_ns()
        broker.wait(job["id"])
        with open(job["stdout_path"], encoding="ascii") as file:
            found.append((int(file.read()) - acknowledged) / 1e6)
    return found


def starts(broker: BenchBroker) -> list[Figure]:
    start_latencies(broker, 5)
    found = start_latencies(broker, STARTS)
    return [
        figure(START, statistics.median(found), "ms", 20, runs=STARTS),
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
    jobs = [broker.submit("sleep", "0.05", gpus=8, isolation="env") for _ in range(STARTS)]
    ended = [broker.wait(job["id"])[0] for job in jobs]
    found = [float(after["started_ms"] - before["finished_ms"]) for before, after in pairwise(ended)]
    return [figure("memory back to next start p50", statistics.median(found), "ms", 30, runs=len(found))]


def drain_rate(broker: BenchBroker, isolation: str) -> float:
    """Jobs a second out of an array, median of 3."""
    rates = []
    for _ in range(3):
        begin = time.perf_counter()
        job = broker.submit("true", gpus=1, array=list(range(JOBS)), isolation=isolation)
        broker.wait(job["array_id"])
        rates.append(JOBS / (time.perf_counter() - begin))
    return statistics.median(rates)


def drain(broker: BenchBroker) -> list[Figure]:
    return [figure(DRAIN, drain_rate(broker, "env"), "jobs/s", 100, at_most=False, runs=3)]


def fenced(broker: BenchBroker) -> list[Figure]:
    """The same at level fence, where this machine has it."""
    (job,) = broker.wait(broker.submit("true", gpus=1)["id"])
    level = job["allocation"]["isolation"]
    if level != "fence":
        why = f"the level here is {level}: {job['allocation']['isolation_reason']}"
        return [{"figure": name, "skipped": why} for name in (START_FENCED, DRAIN_FENCED)]
    start_latencies(broker, 5, "fence")
    found = start_latencies(broker, STARTS, "fence")
    return [
        figure(START_FENCED, statistics.median(found), "ms", 25, runs=STARTS),
        figure(DRAIN_FENCED, drain_rate(broker, "fence"), "jobs/s", 80, at_most=False, runs=3),
    ]


def devices() -> list[Figure]:
    """On the driver's side, with the fake library in its place."""
    if shutil.which("cc") is None:
        return [{"figure": name, "skipped": "no C compiler to build the fake driver"} for name in DEVICE_FIGURES]
    with machine() as (world, broker):
        percent, resident = telemetry_cost(broker)
        hang = hang_effect(world, broker)
    cost, memory, calls, verbs, ages = DEVICE_FIGURES
    return [
        figure(cost, percent, "% of one core", 2),
        figure(memory, resident, "MiB", 150),
        figure(calls, hang["calls_during"] / hang["calls_before"], "x", 2, runs=CALLS),
        figure(verbs, hang["verbs_during"] / hang["verbs_before"], "x", 2, runs=20),
        figure(ages, hang["ages_during"] / hang["ages_before"], "x", 2, runs=20),
    ]


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


def beside(peer: TaskSpooler | Slurm, own: dict[str, float]) -> list[Figure]:
    """The peer's two figures, with Courtier's of this run and the ratio: below 1 is faster, above 1 is more."""
    missing = peer.missing()
    if missing is not None:
        return [{"figure": name, "peer": peer.name, "skipped": missing} for name in (START, DRAIN)]
    with peer:
        peer.start_ms(2)
        start = statistics.median(peer.start_ms(PEER_STARTS))
        rate = peer.drain_per_second(JOBS)
    start_line = figure(START, own[START], "ms", 20, runs=PEER_STARTS)
    drain_line = figure(DRAIN, own[DRAIN], "jobs/s", 100, at_most=False)
    for line, value in ((start_line, start), (drain_line, rate)):
        ratio = float(str(line["value"])) / value if value else None
        line |= {"peer": peer.name, "peer_value": round(value, 2), "ratio": round(ratio, 3) if ratio else None}
    return [start_line, drain_line]


def main() -> None:
    own: dict[str, float] = {}
    groups: list[Callable[[BenchBroker], list[Figure]]] = [
        idle,
        starts,
        handovers,
        starts_behind_queue,
        drain,
        fenced,
        commands,
    ]
    for group in groups:
        with BenchBroker() as broker:
            for line in group(broker):
                own[str(line["figure"])] = float(str(line["value"]))
                print(json.dumps(line), flush=True)
    for line in devices():
        print(json.dumps(line), flush=True)
    for peer in peers():
        for line in beside(peer, own):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
