"""Sets GPUs aside and takes them back, from what their readings say. Derives from the newest reading of each.

A quarantine is a row with events of its own: it survives the daemon. Must never touch a job on a GPU that still
answers.
"""

from collections.abc import Iterable, Mapping

from courtier.domain.attempts import StopCause
from courtier.domain.devices import Box, Reading
from courtier.domain.health import Ends, Quarantine
from courtier.domain.lifecycle import JobState
from courtier.domain.reasons import reason
from courtier.engine.turn import Turn
from courtier.metering.health import Finding, finding_of


def judge_devices(turn: Turn, readings: Iterable[Reading]) -> None:
    """Draws the conclusions from new readings."""
    for reading in readings:
        _tell_xids(turn, reading)
        finding = finding_of(reading)
        standing = turn.state.quarantines.get(reading.uuid)
        if finding is not None:
            _set_aside(turn, reading, finding, standing)
        elif standing is not None and standing.ends is Ends.ANSWER and reading.at_ms >= standing.since_ms:
            turn.restore_device(reading.uuid)


def _tell_xids(turn: Turn, reading: Reading) -> None:
    tenants = turn.state.tenancy.get(reading.uuid, {})
    for xid in reading.xids:
        running = [job_id for job_id in sorted(tenants) if turn.state.jobs[job_id].state is JobState.RUNNING]
        for job_id in running:
            turn.emit("gpu_error", job_id, xid=xid)
        if not running:
            turn.emit_device("gpu_error", reading.uuid, xid=xid)


def _set_aside(turn: Turn, reading: Reading, finding: Finding, standing: Quarantine | None) -> None:
    if standing is None or (standing.ends is Ends.ANSWER and finding.reason.code != standing.reason.code):
        turn.quarantine_device(reading.uuid, Quarantine(finding.reason, turn.now, turn.boot_id, finding.ends))
    if not finding.fatal:
        return
    for job_id in sorted(turn.state.tenancy.get(reading.uuid, {})):
        job = turn.state.jobs[job_id]
        if job.stop_cause is None:
            turn.stop(job, StopCause.DEVICE_LOST, by=None, grace_ms=job.spec.grace_ms, why=reason("gpu_lost"))


def end_with_boot(turn: Turn) -> None:
    """A machine that started anew has reset its GPUs."""
    for uuid, standing in list(turn.state.quarantines.items()):
        if standing.boot_id != turn.boot_id:
            turn.restore_device(uuid)


def quarantine_unreclaimable(
    turn: Turn, box: Box, readings: Mapping[str, Reading], freed_ms: Mapping[str, int], deadline_ms: int
) -> None:
    """A GPU whose memory did not come back within the deadline names who holds it, and waits for it."""
    for device in box.devices:
        freed, reading = freed_ms.get(device.uuid), readings.get(device.uuid)
        if freed is None or reading is None or device.uuid in turn.state.quarantines:
            continue
        tenants = turn.state.tenancy.get(device.uuid, {})
        held = [(job_id, used) for job_id, used in reading.tenants if used > 0 and job_id not in tenants]
        if held and turn.now - freed >= deadline_ms:
            job_id, used = max(held, key=lambda item: item[1])
            why = reason("gpu_unreclaimable", job=job_id, used_bytes=used, waited_ms=turn.now - freed)
            turn.quarantine_device(device.uuid, Quarantine(why, turn.now, turn.boot_id, Ends.ANSWER))
