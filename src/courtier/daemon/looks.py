"""The last look before a start: the GPUs of a placed job are read again, and the start waits for the answers.

A reading that does not come in time counts as a no. Decides by the engine's rule only.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from courtier.domain.attempts import AttemptKey
from courtier.domain.devices import Box, Reading
from courtier.domain.workloads import Job
from courtier.engine.picture import can_still_start
from courtier.engine.ports import Telemetry
from courtier.engine.state import State

Answer = Callable[[Job, bool], None]


@dataclass(slots=True)
class _Look:
    job: Job
    missing: set[str]
    answer: Answer
    timer: asyncio.TimerHandle | None = None
    fits: bool = True


@dataclass(slots=True)
class Looks:
    """state is the live one; deadline_ms bounds how long a start waits for a GPU's answer."""

    box: Box
    state: State
    telemetry: Telemetry
    ignored_bytes: int
    deadline_ms: int
    _open: dict[AttemptKey, _Look] = field(default_factory=dict)

    def look(self, job: Job, uuids: Sequence[str], answer: Answer) -> None:
        """Asks for readings; `answer` gets the job and whether it may start, at once where they come at once."""
        look = _Look(job, set(uuids), answer)
        self._open[job.attempt_key] = look
        self.telemetry.request(uuids)
        if job.attempt_key in self._open:
            loop = asyncio.get_running_loop()
            look.timer = loop.call_later(self.deadline_ms / 1000, self._close, look, False)

    def take(self, readings: Sequence[Reading]) -> None:
        """Every reading that comes passes here, before the loop has it."""
        devices = {device.uuid: device for device in self.box.devices}
        for look in list(self._open.values()):
            for reading in readings:
                if reading.uuid not in look.missing:
                    continue
                look.missing.discard(reading.uuid)
                look.fits &= can_still_start(
                    self.state, look.job, devices[reading.uuid], reading, ignored_bytes=self.ignored_bytes
                )
            if not look.missing:
                self._close(look, look.fits)

    def _close(self, look: _Look, fits: bool) -> None:
        if self._open.pop(look.job.attempt_key, None) is None:
            return
        if look.timer is not None:
            look.timer.cancel()
        look.answer(look.job, fits)
