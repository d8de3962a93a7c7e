"""`make bench-placement`: placement on the public traces, one JSON line a figure. TRACES names their folder.

Compares with the published results, which no product code reads.
"""

import csv
import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from courtier.placement import kernels
from courtier.placement.batch import decide
from courtier.placement.demand import demand_of
from courtier.placement.fleet import Fleet
from courtier.placement.weights import POLICIES
from courtier.sim.openb import Trace, load_trace, result, simulate

PUBLISHED = {"fgd": "FGD", "bestfit": "BestFit", "dotprod": "DotProd", "gpupacking": "GpuPacking"}
MARK = "allocation_percent_at_130"


def line(name: str, value: float, unit: str, bar: float, *, at_most: bool, runs: int, **more: object) -> None:
    met = value <= bar if at_most else value >= bar
    print(
        json.dumps(
            {
                "figure": name,
                "value": round(value, 4),
                "unit": unit,
                "bar": bar,
                "met": met,
                "peer": None,
                "peer_value": None,
                "ratio": None,
                **more,
                "runs": runs,
                "load": round(os.getloadavg()[0], 2),
            }
        ),
        flush=True,
    )


def published(folder: Path) -> dict[tuple[str, str, str], float]:
    with (folder / "published_allocation.csv").open(newline="") as file:
        return {
            (row["trace"], row["policy"], row["seed"]): float(row["allocated_percent_at_130"])
            for row in csv.DictReader(file)
        }


def quality(folder: Path) -> None:
    known = published(folder)
    runs = sorted({(trace, seed) for trace, _, seed in known})
    off: dict[str, list[float]] = {name: [] for name in PUBLISHED}
    gained: dict[str, list[float]] = {}
    reached: list[float] = []
    for name, seed in runs:
        trace = load_trace(folder, name, int(seed))
        for policy, title in PUBLISHED.items():
            batch, seconds = simulate(trace, POLICIES[policy], seed=0, learned=False, kernels=kernels)
            off[policy].append(result(trace, batch, seconds)[MARK] - known[name, title, seed])
        batch, seconds = simulate(trace, POLICIES["courtier"], seed=0, learned=False, kernels=kernels)
        mine = result(trace, batch, seconds)[MARK]
        gained.setdefault(name, []).append(mine - known[name, "FGD", seed])
        if name == "default":
            reached.append(mine)
    for policy in ("bestfit", "dotprod", "gpupacking"):
        largest = max(abs(value) for value in off[policy])
        line(f"published {policy}, largest difference", largest, "points", 0.01, at_most=True, runs=len(runs))
    fgd = [abs(value) for value in off["fgd"]]
    line("published fgd, largest difference", max(fgd), "points", 0.3, at_most=True, runs=len(runs))
    mean = abs(statistics.mean(off["fgd"]))
    line("published fgd, mean difference", mean, "points", 0.05, at_most=True, runs=len(runs))
    means = {name: statistics.mean(values) for name, values in gained.items()}
    everywhere = statistics.mean(means.values())
    more = {"by_trace": {name: round(value, 2) for name, value in means.items()}}
    line(
        "courtier over published fgd, mean of traces", everywhere, "points", 0.7, at_most=False, runs=len(runs), **more
    )
    line("courtier over published fgd, worst trace", min(means.values()), "points", 0, at_most=False, runs=len(runs))
    mean = statistics.mean(reached)
    line("courtier on default, allocated", mean, "%", 95.9, at_most=False, runs=len(reached))


def rate(trace: Trace, repeat: int = 5) -> float:
    demand = demand_of(trace.requests, trace.fleet.models)
    order = trace.kind_of[trace.arrivals]
    found = []
    for _ in range(repeat):
        begin = time.perf_counter()
        decide(trace.fleet, trace.kinds, order, demand, POLICIES["courtier"], kernels=kernels)
        found.append(len(order) / (time.perf_counter() - begin))
    return statistics.median(found)


def speed(folder: Path) -> None:
    trace = load_trace(folder, "default", 42)
    fast = rate(trace)
    line("decisions a second, courtier, compiled", fast, "1/s", 50_000, at_most=False, runs=5)
    demand = demand_of(trace.requests, trace.fleet.models)
    order = trace.kind_of[trace.arrivals][:4000]
    begin = time.perf_counter()
    decide(trace.fleet, trace.kinds, order, demand, POLICIES["courtier"])
    slow = len(order) / (time.perf_counter() - begin)
    line("decisions a second, courtier, numpy", slow, "1/s", 2_000, at_most=False, runs=1)
    large = 10_000 // len(trace.fleet) + 1
    fleet = Fleet(
        trace.fleet.models,
        np.tile(trace.fleet.cpu_milli_free, large)[:10_000],
        np.tile(trace.fleet.memory_mib_free, large)[:10_000],
        np.tile(trace.fleet.gpu_milli_free, (large, 1))[:10_000],
        np.tile(trace.fleet.model, large)[:10_000],
    )
    order = np.tile(trace.kind_of[trace.arrivals], 10)[:100_000]
    begin = time.perf_counter()
    decide(fleet, trace.kinds, order, demand, POLICIES["courtier"], kernels=kernels)
    ratio = fast / (len(order) / (time.perf_counter() - begin))
    line("cost of a decision on 10,000 nodes, against 1,213", ratio, "x", 2, at_most=True, runs=1)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/traces") / "openb"
    if not folder.is_dir():
        print(
            json.dumps({"figure": "placement on public traces", "skipped": f"{folder} is not there: make TRACES=DIR"})
        )
        return
    quality(folder)
    speed(folder)


if __name__ == "__main__":
    main()
