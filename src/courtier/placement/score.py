"""Scores of one kind of request on many nodes at once, in whole numbers: the numpy path.

The same numbers as placement/kernels.py finds, to the last bit: a test compares them. A score is the more the
better; -1 << 62 says that the request does not fit.
"""

import numpy as np
from numpy.typing import NDArray

from courtier.placement.demand import ONE, Demand
from courtier.placement.fleet import GPU_MILLI, Ints, Kinds
from courtier.placement.weights import Weights, sigmoid_steps

NDBool = NDArray[np.bool_]
UNFIT = -(1 << 62)
# The largest node of the published traces: their scores are normalised by it.
CPU_MILLI_MAX = 128_000
GPU_MILLI_NODE_MAX = 8_000
PACKING_SCALE = 80
_STEPS = sigmoid_steps()


class Scratch:
    """The free amounts that a batch of decisions works on: copies, changed in place."""

    def __init__(self, cpu: Ints, memory: Ints, gpus: Ints, model: Ints) -> None:
        self.cpu = cpu.copy()
        self.memory = memory.copy()
        self.gpus = gpus.copy()
        self.model = model

    def place(self, node: int, kinds: Kinds, kind: int, gpu: int) -> list[int]:
        """Takes what the kind asks for; gpu is the shared one, -1 for whole GPUs or none. Returns the GPUs taken."""
        self.cpu[node] -= kinds.cpu_milli[kind]
        self.memory[node] -= kinds.memory_mib[kind]
        if gpu >= 0:
            self.gpus[node, gpu] -= kinds.gpu_milli[kind]
            return [gpu]
        wanted = int(kinds.gpus[kind])
        taken = [int(place) for place in np.flatnonzero(self.gpus[node] == GPU_MILLI)[:wanted]]
        self.gpus[node, taken] = 0
        return taken


def fragmentation(cpu: Ints, gpus: Ints, model: Ints, demand: Demand) -> Ints:
    """Per node: the GPU share (milli x ONE) that a next request could not use, over the demand's classes."""
    free = np.maximum(gpus, 0)
    total = free.sum(axis=1)
    enough = gpus[:, :, None] >= demand.gpu_milli[None, None, :]
    count = enough.sum(axis=1)
    small = np.where(enough, 0, free[:, :, None]).sum(axis=1)
    return _wasted(cpu, model, demand, count, small, total[:, None])


def _wasted(cpu: Ints, model: Ints, demand: Demand, count: Ints, small: Ints, total: Ints) -> Ints:
    allowed = (demand.models[None, :] >> model[:, None]) & 1
    can = (demand.gpus[None, :] > 0) & (allowed == 1) & (cpu[:, None] >= demand.cpu_milli[None, :])
    can &= count >= demand.gpus[None, :]
    wasted: Ints = (np.where(can, small, total) * demand.share[None, :]).sum(axis=1)
    return wasted


def stranding(cpu: Ints, total: Ints, per_gpu: int) -> Ints:
    """GPU share (milli x ONE) that the node's CPU can not serve."""
    short: Ints = np.maximum(total * per_gpu - cpu * GPU_MILLI, 0) * ONE // per_gpu
    return short


def fits(scratch: Scratch, nodes: Ints, kinds: Kinds, kind: int) -> NDBool:
    """Which nodes have the CPU, the memory, an allowed model, and the GPUs."""
    good = (scratch.cpu[nodes] >= kinds.cpu_milli[kind]) & (scratch.memory[nodes] >= kinds.memory_mib[kind])
    if kinds.gpus[kind] > 0:
        good &= (kinds.models[kind] >> scratch.model[nodes]) & 1 == 1
        good &= (scratch.gpus[nodes] >= kinds.gpu_milli[kind]).sum(axis=1) >= kinds.gpus[kind]
    return np.asarray(good, dtype=np.bool_)


def scores(
    scratch: Scratch, nodes: Ints, kinds: Kinds, kind: int, demand: Demand, policy: Weights, salt: int = 0
) -> tuple[Ints, Ints]:
    """(score of each node, the shared GPU or -1). salt makes random differ between decisions."""
    found = np.full(len(nodes), UNFIT, dtype=np.int64)
    chosen = np.full(len(nodes), -1, dtype=np.int64)
    good = fits(scratch, nodes, kinds, kind)
    if not good.any():
        return found, chosen
    some = nodes[good]
    share = kinds.gpus[kind] == 1 and kinds.gpu_milli[kind] < GPU_MILLI
    if policy.rule in ("bestfit", "dotprod", "gpupacking", "random"):
        found[good] = _published(scratch, some, kinds, kind, policy.rule, salt)
        if share:
            chosen[good] = _tightest(scratch.gpus[some], int(kinds.gpu_milli[kind]))
        return found, chosen
    if share:
        found[good], chosen[good] = _shared(scratch, some, kinds, kind, demand, policy)
    else:
        found[good] = _whole(scratch, some, kinds, kind, demand, policy)
    return found, chosen


def _tightest(gpus: Ints, milli: int) -> Ints:
    """The GPU with the least that is enough, the first of equals."""
    tight: Ints = np.where(gpus >= milli, gpus, GPU_MILLI + 1).argmin(axis=1)
    return tight


def _published(scratch: Scratch, nodes: Ints, kinds: Kinds, kind: int, rule: str, salt: int) -> Ints:
    cpu, gpus = scratch.cpu[nodes], scratch.gpus[nodes]
    free = np.maximum(gpus, 0).sum(axis=1)
    asked = int(kinds.gpus[kind] * kinds.gpu_milli[kind])
    cpu_asked = int(kinds.cpu_milli[kind])
    if rule == "random":
        return mixed(nodes, salt)
    if rule == "bestfit":
        scale = 2 * CPU_MILLI_MAX
        left = (cpu - cpu_asked) + (CPU_MILLI_MAX // GPU_MILLI_NODE_MAX) * (free - asked)
        best: Ints = 100 * (scale - left) // scale
        return best
    if rule == "dotprod":
        ratio = CPU_MILLI_MAX // GPU_MILLI_NODE_MAX
        whole = 2 * CPU_MILLI_MAX * CPU_MILLI_MAX
        dot: Ints = 100 * (whole - cpu * cpu_asked - ratio * ratio * free * asked) // whole
        return dot
    return _gpu_packing(gpus, int(kinds.gpus[kind]), int(kinds.gpu_milli[kind]))


def mixed(nodes: Ints, salt: int) -> Ints:
    """A number for each node that looks drawn: the finaliser of splitmix64 over (salt, node), 62 bits."""
    value = (nodes.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    drawn: Ints = ((value ^ (value >> np.uint64(31))) >> np.uint64(2)).astype(np.int64)
    return drawn


def _gpu_packing(gpus: Ints, wanted: int, milli: int) -> Ints:
    if wanted == 0:
        return np.zeros(len(gpus), dtype=np.int64)
    present = (gpus >= 0).sum(axis=1)
    full = (gpus == GPU_MILLI).sum(axis=1)
    order = np.sort(np.where(gpus >= milli, gpus, GPU_MILLI + 1), axis=1)[:, :wanted]
    opened = (order == GPU_MILLI).sum(axis=1)
    ratio = np.where(order < GPU_MILLI, order * 100 // GPU_MILLI, 0).sum(axis=1)
    used = np.where(opened > 0, np.maximum(50 - opened, 33), np.maximum(100 - ratio // 10, 50))
    packed: Ints = np.where(full == present, np.maximum(33 - full, full), used)
    return packed


def _sum(terms: tuple[Ints, ...], policy: Weights) -> Ints:
    weights = policy.weights_milli
    cost = sum((term * weight for term, weight in zip(terms, weights, strict=True)), np.zeros_like(terms[0]))
    return -cost


def _shared(
    scratch: Scratch, nodes: Ints, kinds: Kinds, kind: int, demand: Demand, policy: Weights
) -> tuple[Ints, Ints]:
    """Over the GPUs of each node: the best, the first of equals."""
    milli, cpu_asked = int(kinds.gpu_milli[kind]), int(kinds.cpu_milli[kind])
    cpu, gpus, model = scratch.cpu[nodes], scratch.gpus[nodes], scratch.model[nodes]
    free = np.maximum(gpus, 0)
    total = free.sum(axis=1)
    before = fragmentation(cpu, gpus, model, demand)
    enough = gpus[:, :, None] >= demand.gpu_milli[None, None, :]
    count, small = enough.sum(axis=1), np.where(enough, 0, free[:, :, None]).sum(axis=1)
    best = np.full(len(nodes), UNFIT, dtype=np.int64)
    chosen = np.full(len(nodes), -1, dtype=np.int64)
    for gpu in range(gpus.shape[1]):
        had = gpus[:, gpu]
        left = had - milli
        holds = left >= 0
        if not holds.any():
            continue
        after_enough = left[:, None] >= demand.gpu_milli[None, :]
        count_after = count - enough[:, gpu] + after_enough
        small_after = small - np.where(enough[:, gpu], 0, free[:, gpu, None]) + np.where(after_enough, 0, left[:, None])
        after = _wasted(cpu - cpu_asked, model, demand, count_after, small_after, (total - milli)[:, None])
        if policy.rule == "fgd":
            score = np.searchsorted(_STEPS, before - after, side="right")
        else:
            safe = np.where(holds, had, milli)
            terms = (
                after - before,
                stranding(cpu - cpu_asked, total - milli, demand.cpu_milli_per_gpu)
                - stranding(cpu, total, demand.cpu_milli_per_gpu),
                demand.price[safe] - demand.price[safe - milli],
                (had == GPU_MILLI) * ONE,
                np.zeros_like(total),
                (total - milli) * ONE // PACKING_SCALE,
            )
            score = _sum(terms, policy)
        better = holds & (score > best)
        best = np.where(better, score, best)
        chosen = np.where(better, gpu, chosen)
    return best, chosen


def _whole(scratch: Scratch, nodes: Ints, kinds: Kinds, kind: int, demand: Demand, policy: Weights) -> Ints:
    wanted, cpu_asked = int(kinds.gpus[kind]), int(kinds.cpu_milli[kind])
    cpu, gpus, model = scratch.cpu[nodes], scratch.gpus[nodes], scratch.model[nodes]
    free = gpus == GPU_MILLI
    taken = free & (free.cumsum(axis=1) <= wanted)
    after_gpus = np.where(taken, 0, gpus)
    total = np.maximum(gpus, 0).sum(axis=1)
    left = total - wanted * GPU_MILLI
    before = fragmentation(cpu, gpus, model, demand)
    after = fragmentation(cpu - cpu_asked, after_gpus, model, demand)
    if policy.rule == "fgd":
        steps: Ints = np.searchsorted(_STEPS, before - after, side="right")
        return steps
    terms = (
        after - before,
        stranding(cpu - cpu_asked, left, demand.cpu_milli_per_gpu) - stranding(cpu, total, demand.cpu_milli_per_gpu),
        np.zeros_like(total),
        np.zeros_like(total),
        (free.sum(axis=1) - wanted) * ONE if wanted else np.zeros_like(total),
        left * ONE // PACKING_SCALE,
    )
    return _sum(terms, policy)
