"""Misfortune by seed: each seed lets one kind of fault meet one point of a job's life, and adds others by chance."""

from collections.abc import Callable

from courtier.sim.world import World

POINTS = ("accepted", "placed", "spawned", "running", "exiting", "finished", "cleaned")


def _both(world: World, job_id: int) -> None:
    world.kill_daemon()
    world.processes.kill_supervisor(job_id)


def _disk_full(world: World, _job_id: int) -> None:
    world.store.full = True
    world.after(8_000, lambda: setattr(world.store, "full", False))


def _drop(world: World, _job_id: int) -> None:
    world.drop_notices = 2


def _double(world: World, _job_id: int) -> None:
    world.double_notices = 3


def _late(world: World, _job_id: int) -> None:
    world.late_notice_ms = 12_000


def _refuse(world: World, _job_id: int) -> None:
    world.processes.refuse_next = True


def _crash_in_commands(world: World, _job_id: int) -> None:
    world.crash_after_commands = world.rng("fault").randint(0, 3)


# Every kind acts on the world at once; the job is the one that reached the point.
FAULTS: dict[str, Callable[[World, int], None]] = {
    "daemon_killed": lambda world, _job_id: world.kill_daemon(),
    "daemon_killed_in_commands": _crash_in_commands,
    "supervisor_killed": lambda world, job_id: world.processes.kill_supervisor(job_id),
    "both_killed": _both,
    "daemon_stopped": lambda world, _job_id: world.freeze_daemon(60_000),
    "disk_full": _disk_full,
    "new_boot": lambda world, _job_id: world.reboot(),
    "notice_lost": _drop,
    "notice_twice": _double,
    "notice_late": _late,
    "start_refused": _refuse,
    "user_cancels": lambda world, job_id: world.cancel(job_id),
    "user_requeues": lambda world, job_id: world.requeue(job_id),
}


class Misfortune:
    """Hooks faults into a world; `met` counts (kind, point)."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        kinds = tuple(FAULTS)
        self._kind = kinds[seed % len(kinds)]
        self._point = POINTS[seed // len(kinds) % len(POINTS)]
        self._target = 1 + world.rng("target").randrange(3)
        self._more = world.rng("more")
        self._chance = world.rng("swarm").choice((0.0, 0.005, 0.02))
        self._armed = True
        self.over = False
        self.met: dict[tuple[str, str], int] = {}
        world.on_point = self._reached

    def _reached(self, point: str, job_id: int) -> None:
        if self.over:
            return
        if self._armed and point == self._point and job_id >= self._target:
            self._armed = False
            self._strike(self._kind, point, job_id)
        elif self._more.random() < self._chance:
            self._strike(self._more.choice(tuple(FAULTS)), point, job_id)

    def _strike(self, kind: str, point: str, job_id: int) -> None:
        self.met[kind, point] = self.met.get((kind, point), 0) + 1
        self._world.trace.append(f"{self._world.now} FAULT {kind} at {point} of job {job_id}")
        FAULTS[kind](self._world, job_id)
