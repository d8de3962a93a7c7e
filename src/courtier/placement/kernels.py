"""The decisions of placement/batch.py, compiled: the same whole numbers as placement/score.py, node by node.

Needs numba (the extra `fast`), which nothing else may import. Loaded only where it was asked for; never by a daemon.
"""

import numba
import numpy as np

UNFIT = -(1 << 62)
ONE = 1 << 24
GPU = 1000
CPU_MAX, NODE_MAX, PACKING_SCALE = 128_000, 8_000, 80
SUM, FGD, BESTFIT, DOTPROD, GPUPACKING, RANDOM = range(6)
compiled = numba.njit(cache=True)


@compiled
def _above(milli, share):
    """Share of the classes that ask more than r of a GPU, for each residual r."""
    table = np.zeros(GPU + 1, np.int64)
    for c in range(len(share)):
        for residual in range(min(milli[c], GPU + 1)):
            table[residual] += share[c]
    return table


@compiled
def _fragmentation(cpu, gpus, model, demand):
    """Every GPU's residual counts for the classes that ask more of it; a class that the node can not serve at all
    loses the rest as well. Classes of several GPUs ask whole ones."""
    cpus, milli, count, models, share, _, above = demand
    wasted, total, full, largest = 0, 0, 0, 0
    for free in gpus:
        if free > 0:
            wasted += free * above[free]
            total += free
            largest = max(largest, free)
            if free == GPU:
                full += 1
    for c in range(len(share)):
        if count[c] == 0:
            wasted += total * share[c]
        elif (models[c] >> model) & 1 == 0 or cpu < cpus[c]:
            rest = 0
            if largest >= milli[c]:
                for free in gpus:
                    if free >= milli[c] and free > 0:
                        rest += free
            wasted += rest * share[c]
        elif count[c] > 1 and full < count[c]:
            wasted += full * GPU * share[c]
    return wasted


@compiled
def _stranding(cpu, total, per_gpu):
    return max(total * per_gpu - cpu * GPU, 0) * ONE // per_gpu


@compiled
def _fits(cpu, memory, gpus, model, kinds, k):
    if cpu < kinds[0][k] or memory < kinds[1][k]:
        return False
    if kinds[2][k] == 0:
        return True
    if (kinds[4][k] >> model) & 1 == 0:
        return False
    enough = 0
    for free in gpus:
        if free >= kinds[3][k]:
            enough += 1
    return enough >= kinds[2][k]


@compiled
def _steps(steps, value):
    return np.searchsorted(steps, value, side="right")


@compiled
def _mixed(node, salt):
    value = np.uint64(node + 1) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((value ^ (value >> np.uint64(31))) >> np.uint64(2))


@compiled
def _packing(gpus, wanted, milli):
    if wanted == 0:
        return 0
    present, full = 0, 0
    for free in gpus:
        if free >= 0:
            present += 1
        if free == GPU:
            full += 1
    if full == present:
        return max(33 - full, full)
    order = np.sort(gpus)
    opened, ratio, taken = 0, 0, 0
    for free in order:
        if free >= milli and taken < wanted:
            taken += 1
            if free == GPU:
                opened += 1
            else:
                ratio += free * 100 // GPU
    return max(50 - opened, 33) if opened > 0 else max(100 - ratio // 10, 50)


@compiled
def _tightest(gpus, milli):
    best = -1
    for g in range(len(gpus)):
        if gpus[g] >= milli and (best < 0 or gpus[g] < gpus[best]):
            best = g
    return best


@compiled
def _published(cpu, gpus, node, kinds, k, rule, salt):
    free = 0
    for left in gpus:
        if left > 0:
            free += left
    asked = kinds[2][k] * kinds[3][k]
    if rule == RANDOM:
        return _mixed(node, salt)
    if rule == BESTFIT:
        left = (cpu - kinds[0][k]) + (CPU_MAX // NODE_MAX) * (free - asked)
        return 100 * (2 * CPU_MAX - left) // (2 * CPU_MAX)
    if rule == DOTPROD:
        ratio, whole = CPU_MAX // NODE_MAX, 2 * CPU_MAX * CPU_MAX
        return 100 * (whole - cpu * kinds[0][k] - ratio * ratio * free * asked) // whole
    return _packing(gpus, kinds[2][k], kinds[3][k])


@compiled
def _shared(cpu, gpus, model, before, kinds, k, demand, per_gpu, weights, rule, steps, work):
    milli, cpu_left = kinds[3][k], cpu - kinds[0][k]
    total = 0
    for g in range(len(gpus)):
        work[g] = gpus[g]
        if gpus[g] > 0:
            total += gpus[g]
    price = demand[5]
    stranded = _stranding(cpu_left, total - milli, per_gpu) - _stranding(cpu, total, per_gpu)
    best, chosen = UNFIT, -1
    for g in range(len(gpus)):
        had = gpus[g]
        if had < milli:
            continue
        known = False
        for earlier in range(g):
            known = known or gpus[earlier] == had
        if known:
            continue
        work[g] = had - milli
        after = _fragmentation(cpu_left, work, model, demand)
        work[g] = had
        if rule == FGD:
            score = _steps(steps, before - after)
        else:
            score = -(
                (after - before) * weights[0]
                + stranded * weights[1]
                + (price[had] - price[had - milli]) * weights[2]
                + (ONE if had == GPU else 0) * weights[3]
                + (total - milli) * ONE // PACKING_SCALE * weights[5]
            )
        if score > best:
            best, chosen = score, g
    return best, chosen


@compiled
def _whole(cpu, gpus, model, before, kinds, k, demand, per_gpu, weights, rule, steps, work):
    wanted, cpu_left = kinds[2][k], cpu - kinds[0][k]
    total, full, taken = 0, 0, 0
    for g in range(len(gpus)):
        work[g] = gpus[g]
        if gpus[g] > 0:
            total += gpus[g]
        if gpus[g] == GPU:
            full += 1
            if taken < wanted:
                work[g] = 0
                taken += 1
    left = total - wanted * GPU
    after = _fragmentation(cpu_left, work, model, demand)
    if rule == FGD:
        return _steps(steps, before - after)
    kept = (full - wanted) * ONE if wanted > 0 else 0
    return -(
        (after - before) * weights[0]
        + (_stranding(cpu_left, left, per_gpu) - _stranding(cpu, total, per_gpu)) * weights[1]
        + kept * weights[4]
        + left * ONE // PACKING_SCALE * weights[5]
    )


@compiled
def _score(n, state, before, kinds, k, demand, per_gpu, weights, rule, steps, salt, work):
    cpu, memory, gpus, model = state
    if not _fits(cpu[n], memory[n], gpus[n], model[n], kinds, k):
        return UNFIT, -1
    share = kinds[2][k] == 1 and kinds[3][k] < GPU
    if rule >= BESTFIT:
        chosen = _tightest(gpus[n], kinds[3][k]) if share else -1
        return _published(cpu[n], gpus[n], n, kinds, k, rule, salt), chosen
    if share:
        return _shared(cpu[n], gpus[n], model[n], before[n], kinds, k, demand, per_gpu, weights, rule, steps, work)
    return (
        _whole(cpu[n], gpus[n], model[n], before[n], kinds, k, demand, per_gpu, weights, rule, steps, work),
        -1,
    )


@compiled
def _take(gpus, kinds, k, chosen):
    if chosen >= 0:
        gpus[chosen] -= kinds[3][k]
        return 1 << chosen
    mask, wanted = 0, kinds[2][k]
    for g in range(len(gpus)):
        if wanted > 0 and gpus[g] == GPU:
            gpus[g] = 0
            mask |= 1 << g
            wanted -= 1
    return mask


@compiled
def decide(cpu, memory, gpus, model, kinds, demand, per_gpu, weights, rule, steps, order, seed):
    """(node, GPUs as bits) of each request; the four arrays of what is free are used up."""
    nodes, state = len(cpu), (cpu, memory, gpus, model)
    demand = (*demand, _above(demand[1], demand[4]))
    looked = np.full(nodes, -1, np.int64)
    before = np.zeros(nodes, np.int64)
    for n in range(nodes):
        before[n] = _fragmentation(cpu[n], gpus[n], model[n], demand)
    score = np.zeros((len(kinds[0]), nodes), np.int64)
    shared = np.zeros((len(kinds[0]), nodes), np.int64)
    begun, seen = np.zeros(len(kinds[0]), np.bool_), np.zeros(len(kinds[0]), np.int64)
    changed, changes = np.zeros(len(order) + 1, np.int64), 0
    found, taken = np.full(len(order), -1, np.int64), np.zeros(len(order), np.int64)
    work = np.zeros(gpus.shape[1], np.int64)
    for place in range(len(order)):
        k, salt = order[place], seed + place
        every = not begun[k] or rule == RANDOM
        for step in range(0 if every else seen[k], nodes if every else changes):
            n = step if every else changed[step]
            if looked[n] == place:
                continue
            looked[n] = place
            score[k, n], shared[k, n] = _score(
                n, state, before, kinds, k, demand, per_gpu, weights, rule, steps, salt, work
            )
        begun[k], seen[k] = True, changes
        best = np.argmax(score[k])
        if score[k, best] == UNFIT:
            continue
        cpu[best] -= kinds[0][k]
        memory[best] -= kinds[1][k]
        found[place], taken[place] = best, _take(gpus[best], kinds, k, shared[k, best])
        before[best] = _fragmentation(cpu[best], gpus[best], model[best], demand)
        changed[changes] = best
        changes += 1
    return found, taken
