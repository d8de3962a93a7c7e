"""Runs seeds: each a world, its jobs and its misfortune; then the faults stop and everything has to end."""

import argparse
import hashlib
import sys
from collections import Counter

from courtier.engine.loop import Loop
from courtier.sim import checkers
from courtier.sim.faults import Misfortune
from courtier.sim.store import MemoryStore
from courtier.sim.world import World

JOBS = 9
FAULTS_UNTIL_MS = 40_000
# Faults are over; the longest deadline and every retry pass many times within this.
QUIET_MS = 600_000


class Run:
    """One seed, played to its end. `violation` is the first law that was broken, None when all held."""

    def __init__(self, seed: int, *, loop_class: type[Loop] = Loop, store: MemoryStore | None = None) -> None:
        self.seed = seed
        self.violation: checkers.Violation | None = None
        self.world: World | None = None
        self.met: dict[tuple[str, str], int] = {}
        try:
            self._play(loop_class, store)
        except checkers.Violation as violation:
            self.violation = violation

    def _play(self, loop_class: type[Loop], store: MemoryStore | None) -> None:
        world = self.world = World(self.seed, loop_class=loop_class, store=store)
        misfortune = Misfortune(world, self.seed)
        self.met = misfortune.met
        begin = world.now
        world.submit_some(JOBS)
        world.run(begin + FAULTS_UNTIL_MS)
        misfortune.over = True
        world.run(begin + FAULTS_UNTIL_MS + QUIET_MS)
        checkers.check_end(
            world.store.rows, world.acknowledged, world.store.events, world.processes.started, world.codes
        )

    def digest(self) -> str:
        """Names everything that happened, in order."""
        trace = "\n".join(self.world.trace) if self.world is not None else ""
        return hashlib.sha256(trace.encode()).hexdigest()

    def report(self) -> str:
        lines = self.world.trace[-50:] if self.world is not None else []
        return "\n".join(
            [f"seed={self.seed} {self.violation}", *lines, f"replay: python -m courtier.sim --seed {self.seed}"]
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m courtier.sim")
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="only this one")
    arguments = parser.parse_args()
    seeds = (
        [arguments.seed] if arguments.seed is not None else range(arguments.first, arguments.first + arguments.seeds)
    )
    met: Counter[tuple[str, str]] = Counter()
    for count, seed in enumerate(seeds, 1):
        run = Run(seed)
        met.update(run.met)
        if run.violation is not None:
            sys.stdout.write(run.report() + "\n")
            return 1
        if count % 100 == 0:
            sys.stdout.write(f"\r{count} seeds, {sum(met.values())} faults")
            sys.stdout.flush()
    sys.stdout.write(
        f"\n{count} seeds held; {len(met)} pairs of fault and point met, the rarest {min(met.values())} times\n"
    )
    return 0
