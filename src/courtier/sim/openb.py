"""`courtier sim openb`: the public openb trace against a placement policy. Reads it, decides, says what came out.

The protocol is that of the published results: arrivals without departures, a request that fits nowhere is dropped, one
that fits somewhere is placed. Never reads a published result.
"""

import csv
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from courtier.placement.batch import Batch, decide
from courtier.placement.demand import demand_of
from courtier.placement.fleet import ABSENT, GPU_MILLI, Fleet, Ints, Kind
from courtier.placement.weights import Weights

NODES_NAME = "openb_node_list_gpu_node.csv"
# Arrivals go on to this part of the fleet's GPUs where no file says what arrives.
ARRIVALS_PERCENT = 130
MARKS = (100, 130)
# With a learned mix, the demand is drawn up anew after so many arrivals.
LEARN_EVERY = 256


class TraceRefused(Exception):
    """The folder does not hold what was asked for."""


@dataclass(frozen=True, slots=True)
class Trace:
    """fleet's rows are nodes in the order of the tie-break; node_rows[i] is the i-th's row in the file. arrivals are
    rows of requests; kinds are the different ones among them, kind_of one number a row."""

    fleet: Fleet
    node_rows: tuple[int, ...]
    requests: tuple[Kind, ...]
    kinds: tuple[Kind, ...]
    kind_of: Ints
    arrivals: Ints


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceRefused(f"{path}: {error}") from error


def _numbers(path: Path) -> list[int] | None:
    try:
        return [int(word) for word in path.read_text().replace(",", " ").split()]
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TraceRefused(f"{path}: {error}") from error


def load_trace(folder: Path, name: str, seed: int) -> Trace:
    """Raises TraceRefused. Arrivals and tie-break come from `arrivals/`, or are drawn from the seed."""
    folder = folder / "openb" if (folder / "openb" / NODES_NAME).exists() else folder
    nodes = sorted(_rows(folder / NODES_NAME), key=lambda row: row["sn"])
    pods = sorted(_rows(folder / f"openb_pod_list_{name}.csv"), key=lambda row: row["name"])
    try:
        requests = tuple(_request(row) for row in pods)
        rng = random.Random(seed)
        rank = _numbers(folder / "arrivals" / f"{name}_{seed}.rank.txt") or rng.sample(range(len(nodes)), len(nodes))
        order = sorted(range(len(nodes)), key=lambda row: rank[row])
        fleet = _fleet([nodes[row] for row in order])
        arrivals = _numbers(folder / "arrivals" / f"{name}_{seed}.txt") or _drawn(requests, fleet, rng)
        numbers: dict[Kind, int] = {}
        kind_of = [numbers.setdefault(request, len(numbers)) for request in requests]
        return Trace(
            fleet,
            tuple(order),
            requests,
            tuple(numbers),
            np.array(kind_of, dtype=np.int64),
            np.array(arrivals, dtype=np.int64),
        )
    except (KeyError, ValueError, IndexError) as error:
        raise TraceRefused(f"{folder}: the trace is not understood: {error!r}") from error


def _request(row: dict[str, str]) -> Kind:
    models = row.get("gpu_spec") or ""
    return Kind(
        int(row["cpu_milli"]),
        int(row["memory_mib"]),
        int(row["num_gpu"]),
        int(row["gpu_milli"]),
        tuple(models.split("|")) if models else None,
    )


def _fleet(rows: list[dict[str, str]]) -> Fleet:
    models = tuple(sorted({row["model"] for row in rows}))
    gpus = np.full((len(rows), max(int(row["gpu"]) for row in rows)), ABSENT, dtype=np.int64)
    for place, row in enumerate(rows):
        gpus[place, : int(row["gpu"])] = GPU_MILLI

    def column(name: str) -> Ints:
        return np.array([int(row[name]) for row in rows], dtype=np.int64)

    model = np.array([models.index(row["model"]) for row in rows], dtype=np.int64)
    return Fleet(models, column("cpu_milli"), column("memory_mib"), gpus, model)


def _drawn(requests: tuple[Kind, ...], fleet: Fleet, rng: random.Random) -> list[int]:
    """Rows in random order, again and again, until enough has been asked for."""
    wanted, asked, drawn = fleet.gpu_milli_total * ARRIVALS_PERCENT // 100, 0, list[int]()
    if not any(request.gpus for request in requests):
        raise ValueError("no request asks for a GPU")
    while True:
        for row in rng.sample(range(len(requests)), len(requests)):
            drawn.append(row)
            asked += requests[row].gpus * requests[row].gpu_milli
            if asked > wanted + GPU_MILLI:
                return drawn


def simulate(trace: Trace, policy: Weights, *, seed: int, learned: bool, kernels: Any) -> tuple[Batch, float]:
    """The decisions and how many seconds they took. learned: the mix is known from earlier arrivals only."""
    order = trace.kind_of[trace.arrivals]
    if kernels is not None:
        # Loading the compiled code is no decision.
        warm = demand_of(trace.requests, trace.fleet.models)
        decide(trace.fleet, trace.kinds, order[:1], warm, policy, kernels=kernels)
    begin = time.perf_counter()
    if not learned:
        demand = demand_of(trace.requests, trace.fleet.models)
        batch = decide(trace.fleet, trace.kinds, order, demand, policy, seed=seed, kernels=kernels)
        return batch, time.perf_counter() - begin
    parts = list(_learning(trace, order, policy, seed, kernels))
    batch = Batch(np.concatenate([part.node for part in parts]), np.concatenate([part.gpus for part in parts]))
    return batch, time.perf_counter() - begin


def _learning(trace: Trace, order: Ints, policy: Weights, seed: int, kernels: Any) -> Iterator[Batch]:
    fleet = trace.fleet
    for first in range(0, len(order), LEARN_EVERY):
        part = order[first : first + LEARN_EVERY]
        # Of the very first arrivals nothing is known but themselves being asked for now.
        known = [trace.kinds[kind] for kind in (order[:first] if first else part[:1])]
        demand = demand_of(known, fleet.models)
        batch = decide(fleet, trace.kinds, part, demand, policy, seed=seed + first, kernels=kernels)
        fleet = after(fleet, trace.kinds, part, batch)
        yield batch


def after(fleet: Fleet, kinds: tuple[Kind, ...], order: Ints, batch: Batch) -> Fleet:
    """What is free once a batch has been carried out."""
    cpu, memory, gpus = fleet.cpu_milli_free.copy(), fleet.memory_mib_free.copy(), fleet.gpu_milli_free.copy()
    for number, node, mask in zip(order, batch.node, batch.gpus, strict=True):
        if node < 0:
            continue
        kind = kinds[number]
        cpu[node] -= kind.cpu_milli
        memory[node] -= kind.memory_mib
        for gpu in range(gpus.shape[1]):
            if mask >> gpu & 1:
                gpus[node, gpu] -= kind.gpu_milli
    return replace(fleet, cpu_milli_free=cpu, memory_mib_free=memory, gpu_milli_free=gpus)


def result(trace: Trace, batch: Batch, seconds: float) -> dict[str, Any]:
    """The fields of `simulation`: allocated share of all GPUs, averaged over the arrivals at 100 and at 130 %."""
    capacity = trace.fleet.gpu_milli_total
    asked_each = np.array([kind.gpus * kind.gpu_milli for kind in trace.kinds], dtype=np.int64)
    asked = asked_each[trace.kind_of[trace.arrivals]]
    arrived, allocated = asked.cumsum(), np.where(batch.node >= 0, asked, 0).cumsum()
    marks = np.array([round(100 * int(amount) / capacity) for amount in arrived], dtype=np.int64)
    percents = {}
    for mark in MARKS:
        at = allocated[marks == mark]
        percents[f"allocation_percent_at_{mark}"] = round(100 * float(at.mean()) / capacity, 4) if len(at) else None
    placed = int((batch.node >= 0).sum())
    return {
        **percents,
        "placed": placed,
        "refused": len(batch.node) - placed,
        "decisions_per_second": round(len(batch.node) / seconds),
        "seconds": round(seconds, 3),
    }


def decision_rows(trace: Trace, batch: Batch) -> Iterator[tuple[int, int, int, str]]:
    """order, pod, node, gpus of each decision."""
    width = trace.fleet.gpu_milli_free.shape[1]
    for order, (pod, node, mask) in enumerate(zip(trace.arrivals, batch.node, batch.gpus, strict=True)):
        gpus = ";".join(str(gpu) for gpu in range(width) if mask >> gpu & 1)
        yield order, int(pod), trace.node_rows[node] if node >= 0 else -1, gpus
