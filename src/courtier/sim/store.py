"""A store in memory with the promises of engine.ports.Store: a step is kept whole or not at all."""

from collections.abc import Sequence

from courtier.domain.health import Quarantine
from courtier.domain.lifecycle import ENDED
from courtier.domain.workloads import Job
from courtier.engine.events import Event
from courtier.engine.loop import Outcome
from courtier.engine.ports import PortError


class MemoryStore:
    """`full` refuses every commit, as a full disk does."""

    def __init__(self) -> None:
        self.rows: dict[int, Job] = {}
        self.events: list[Event] = []
        self.aside: dict[str, Quarantine] = {}
        self.next_id = 1
        self.next_sequence = 1
        self.full = False

    def load(self) -> tuple[Sequence[Job], int, int]:
        active = [job for _, job in sorted(self.rows.items()) if job.state not in ENDED]
        return active, self.next_id, self.next_sequence

    def quarantines(self) -> dict[str, Quarantine]:
        return dict(self.aside)

    def commit(self, outcome: Outcome) -> None:
        if self.full:
            raise PortError("store_full", "the disk is full: nothing was kept")
        self.rows.update((job.id, job) for job in outcome.rows)
        self.events += outcome.events
        for uuid, quarantine in outcome.quarantines.items():
            if quarantine is None:
                self.aside.pop(uuid, None)
            else:
                self.aside[uuid] = quarantine
        self.next_id = outcome.next_id
        self.next_sequence = outcome.next_sequence
