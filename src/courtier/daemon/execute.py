"""Carries out the engine's commands through the ports. Every command may come twice; none decides anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from courtier.adapters.simtelemetry import CONTEXT_BYTES, SimulatedTelemetry, SimulatedUse
from courtier.daemon.launch import launch_of
from courtier.daemon.payload import Payload, decode_payload
from courtier.domain.attempts import AttemptKey, AttemptPhase, AttemptStatus
from courtier.domain.lifecycle import JobState
from courtier.domain.workloads import Job
from courtier.engine.commands import (
    CleanAttempt,
    Command,
    LimitAttempt,
    ReadDevices,
    RevokeAttempt,
    SignalAttempt,
    StartAttempt,
    StopAttempt,
)
from courtier.engine.ports import PortError
from courtier.engine.stimuli import AttemptReported

if TYPE_CHECKING:
    from courtier.daemon.broker import Broker

# Payloads kept decoded: arrays share one.
PAYLOADS_MAX = 32
UTILIZATION_PERCENT_DEFAULT = 90
# A whole GPU without a stated use is shown with this part of its memory taken.
WHOLE_USE_PERCENT = 80


class Executor:
    """Turns commands into calls of the runtime, and their refusals into stimuli."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._payloads: dict[str, Payload] = {}

    def carry_out(self, command: Command) -> None:
        runtime = self._broker.runtime
        match command:
            case StartAttempt(job):
                self._start(job)
            case StopAttempt(key, cause, grace_ms):
                runtime.stop(key, cause, grace_ms=grace_ms)
            case SignalAttempt(key, number):
                runtime.signal(key, number, leader_only=False)
            case LimitAttempt(key, time_limit_ms):
                runtime.set_time_limit(key, time_limit_ms)
            case RevokeAttempt(key):
                self._broker.add_stimulus(AttemptReported(runtime.revoke(key)))
            case CleanAttempt(key):
                runtime.clean(key)
            case ReadDevices():
                self._broker.read_reclaiming()

    def _start(self, job: Job) -> None:
        """Its GPUs are read once more first: somebody outside may have come to them since they were chosen."""
        devices = job.allocation.devices if job.allocation is not None else ()
        if devices:
            self._broker.looks.look(job, tuple(share.uuid for share in devices), self._start_now)
        else:
            self._start_now(job, True)

    def _start_now(self, job: Job, still_fits: bool) -> None:
        broker = self._broker
        row = broker.loop.state.jobs.get(job.id)
        if row is None or row.state is not JobState.STARTING or row.attempt_key != job.attempt_key:
            return
        if not still_fits or row.stop_cause is not None:
            broker.add_stimulus(AttemptReported(AttemptStatus(job.attempt_key, AttemptPhase.REVOKED)))
            return
        try:
            payload = self._payload(job.spec.payload_sha256)
            launch = launch_of(job, payload, broker.box, home=broker.home, settings=broker.settings)
            broker.runtime.start(launch)
        except PortError as error:
            status = AttemptStatus(job.attempt_key, AttemptPhase.REFUSED, error=error.text)
            broker.add_stimulus(AttemptReported(status))

    def _payload(self, sha256: str) -> Payload:
        found = self._payloads.pop(sha256, None)
        if found is None:
            content = self._broker.store.payload(sha256)
            if content is None:
                raise PortError("payload_missing", f"the stored environment {sha256} is gone")
            found = decode_payload(content)
        self._payloads[sha256] = found
        if len(self._payloads) > PAYLOADS_MAX:
            self._payloads.pop(next(iter(self._payloads)))
        return found

    def simulate_use(self, key: AttemptKey) -> None:
        """On a simulated box, the attempt's GPUs show what it says that it uses."""
        telemetry = self._broker.telemetry
        job = self._broker.loop.state.jobs.get(key.job_id)
        if not isinstance(telemetry, SimulatedTelemetry) or job is None or job.allocation is None:
            return
        if job.attempt_key == key:
            telemetry.begin(key, _uses(job, key))

    def end_use(self, key: AttemptKey) -> None:
        """The same at its end."""
        if isinstance(self._broker.telemetry, SimulatedTelemetry):
            self._broker.telemetry.end(key)


def _uses(job: Job, key: AttemptKey) -> list[SimulatedUse]:
    assert job.allocation is not None
    spec = job.spec
    uses = []
    for share in job.allocation.devices:
        default = share.memory_bytes * WHOLE_USE_PERCENT // 100 if share.whole else share.memory_bytes
        stated = spec.memory_bytes_simulated
        memory_bytes = stated if stated is not None else max(default, min(CONTEXT_BYTES, share.memory_bytes))
        percent = spec.utilization_percent_simulated
        uses.append(
            SimulatedUse(key, share.uuid, memory_bytes, UTILIZATION_PERCENT_DEFAULT if percent is None else percent)
        )
    return uses
