"""The golden table of causes: what an ended attempt means, in order of precedence."""

import pytest

from courtier.domain.attempts import AttemptPhase, StopCause
from courtier.domain.lifecycle import JobState
from courtier.domain.workloads import Request, RetryCause
from courtier.engine.verdict import judge
from makers import BOOT, GIB, make_allocation, make_job, make_share, make_status

S, C, R, P = JobState, StopCause, RetryCause, AttemptPhase
VANISHED = {"phase": P.VANISHED}

# what the world shows, what the row says, the boot -> state, reason, cause of a retry, requeue
TABLE = [
    ({"exit_code": 0}, {}, BOOT, (S.COMPLETED, None, None, False)),
    ({"exit_code": 7}, {}, BOOT, (S.FAILED, "nonzero_exit", R.FAILED, False)),
    ({"signal": 9}, {}, BOOT, (S.FAILED, "killed_by_signal", R.FAILED, False)),
    ({"signal": 9, "oom_kills": 0}, {}, BOOT, (S.FAILED, "killed_by_signal", R.FAILED, False)),
    ({"signal": 9, "oom_kills": 1}, {}, BOOT, (S.OUT_OF_MEMORY, "memory_limit", R.OOM, False)),
    ({"exit_code": 1, "oom_kills": 2}, {}, BOOT, (S.OUT_OF_MEMORY, "memory_limit", R.OOM, False)),
    # a child of it was killed for memory, and it went on to succeed
    ({"exit_code": 0, "oom_kills": 1}, {}, BOOT, (S.COMPLETED, None, None, False)),
    ({"exit_code": 127, "error": "nope"}, {}, BOOT, (S.FAILED, "not_started", R.FAILED, False)),
    ({"error": "log full"}, {}, BOOT, (S.FAILED, "not_started", R.FAILED, False)),
    # a stop wins over what the process made of it
    ({"exit_code": 0, "stop_cause": C.CANCEL}, {}, BOOT, (S.CANCELLED, "cancelled_by_user", None, False)),
    ({"signal": 15, "stop_cause": C.CLIENT_GONE}, {}, BOOT, (S.CANCELLED, "client_gone", None, False)),
    ({"signal": 15, "stop_cause": C.TIME_LIMIT}, {}, BOOT, (S.TIMEOUT, "time_limit", R.TIMEOUT, False)),
    ({"signal": 15, "stop_cause": C.PREEMPT}, {}, BOOT, (S.PREEMPTED, "preempted", None, True)),
    ({"signal": 15, "stop_cause": C.REQUEUE}, {}, BOOT, (S.CANCELLED, "cancelled_by_user", None, True)),
    ({"signal": 9, "stop_cause": C.MEMORY_WATCH}, {}, BOOT, (S.OUT_OF_MEMORY, "memory_watch", R.OOM, False)),
    ({"signal": 15, "stop_cause": C.GPU_MEMORY}, {}, BOOT, (S.OUT_OF_MEMORY, "gpu_memory_overuse", R.OOM, False)),
    ({"signal": 15, "stop_cause": C.DEVICE_LOST}, {}, BOOT, (S.LOST, "gpu_lost", R.GPU_LOST, False)),
    ({"signal": 9, "oom_kills": 3, "stop_cause": C.TIME_LIMIT}, {}, BOOT, (S.TIMEOUT, "time_limit", R.TIMEOUT, False)),
    # asked to stop, and over before the supervisor heard of it: its own end counts
    ({"exit_code": 0}, {"stop_cause": C.CANCEL}, BOOT, (S.COMPLETED, None, None, False)),
    ({"exit_code": 3}, {"stop_cause": C.PREEMPT}, BOOT, (S.FAILED, "nonzero_exit", R.FAILED, False)),
    # the supervisor took its knowledge along
    (VANISHED, {}, BOOT, (S.LOST, "supervisor_lost", R.NODE_LOST, False)),
    (VANISHED, {}, "boot-1", (S.LOST, "node_rebooted", R.NODE_LOST, False)),
    (VANISHED, {"stop_cause": C.CANCEL}, BOOT, (S.CANCELLED, "cancelled_by_user", None, False)),
    (VANISHED, {"stop_cause": C.PREEMPT}, "boot-1", (S.PREEMPTED, "preempted", None, True)),
    ({**VANISHED, "exit_code": 5}, {}, BOOT, (S.FAILED, "nonzero_exit", R.FAILED, False)),
]


@pytest.mark.parametrize(("shown", "row", "boot", "verdict"), TABLE)
def test_the_table_of_causes(shown: dict, row: dict, boot: str, verdict: tuple) -> None:  # type: ignore[type-arg]
    request = Request(memory_bytes=GIB, time_limit_ms=60_000, gpu_memory_bytes=2 * GIB)
    job = make_job(1, S.RUNNING, request, allocation=make_allocation(make_share(0)), **row)
    shown = dict(shown)
    found = judge(job, make_status(job, shown.pop("phase", P.ENDED), **shown), boot_id=boot)
    code = found.reason.code if found.reason is not None else None
    assert (found.state, code, found.cause, found.requeue) == verdict
    assert found.reason is None or found.reason.text


def test_every_stop_has_a_verdict_of_its_own() -> None:
    job = make_job(1, S.RUNNING)
    natural = judge(job, make_status(job, P.ENDED, signal=15), boot_id=BOOT)
    for cause in StopCause:
        assert judge(job, make_status(job, P.ENDED, signal=15, stop_cause=cause), boot_id=BOOT) != natural


def test_who_cancelled_is_named() -> None:
    job = make_job(1, S.RUNNING, stop_cause=C.CANCEL, stop_by="bob")
    found = judge(job, make_status(job, P.ENDED, signal=15, stop_cause=C.CANCEL), boot_id=BOOT)
    assert found.reason is not None and dict(found.reason.numbers) == {"user": "bob"}
