"""`make bench`: the promised figures, one JSON line each, with their bars, peers and the machine's load."""

import json
import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

from broker import BenchBroker, percentile, timed
from peers import Slurm, TaskSpooler, peers

STARTS = 40
PEER_STARTS = 15
JOBS = 1000
START = "submit to start p50, idle"
DRAIN = "array of 1,000 drained"
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
    jobs = [broker.submit("sleep", "0.05", gpus=8) for _ in range(STARTS)]
    ended = [broker.wait(job["id"])[0] for job in jobs]
    found = [float(after["started_ms"] - before["finished_ms"]) for before, after in pairwise(ended)]
    return [figure("memory back to next start p50", statistics.median(found), "ms", 30, runs=len(found))]


def drain(broker: BenchBroker) -> list[Figure]:
    rates = []
    for _ in range(3):
        begin = time.perf_counter()
        job = broker.submit("true", gpus=1, array=list(range(JOBS)))
        broker.wait(job["array_id"])
        rates.append(JOBS / (time.perf_counter() - begin))
    return [figure(DRAIN, statistics.median(rates), "jobs/s", 100, at_most=False, runs=3)]


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
        commands,
    ]
    for group in groups:
        with BenchBroker() as broker:
            for line in group(broker):
                own[str(line["figure"])] = float(str(line["value"]))
                print(json.dumps(line), flush=True)
    for peer in peers():
        for line in beside(peer, own):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
