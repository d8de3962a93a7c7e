"""Trouble on a simulated GPU, and what the broker makes of it: the others go on, reasons carry numbers."""

import os
import signal
from typing import Any

import pytest

from conftest import LiveBroker, document, wait_until
from courtier.adapters.process.fence_probe import probe_fence

GIB = 1 << 30
LEVEL = probe_fence().level


def drill(broker: LiveBroker, *words: str) -> dict[str, Any]:
    """The drilled GPU as it is right after the drill was acknowledged."""
    index = int(words[0].removeprefix("gpu"))
    return document(broker.cli("drill", *words, "-o", "json"))["gpus"][index]  # type: ignore[no-any-return]


def gpu(broker: LiveBroker, index: int) -> dict[str, Any]:
    return broker.client.call("GET", "/v1/gpus")["gpus"][index]  # type: ignore[no-any-return]


def why(broker: LiveBroker, job: int) -> dict[str, Any]:
    return broker.client.call("GET", f"/v1/jobs/{job}/why")["reasons"][0]  # type: ignore[no-any-return]


def gpu_of(job: dict[str, Any]) -> int:
    return job["allocation"]["gpus"][0]["index"]  # type: ignore[no-any-return]


def test_a_lost_gpu_takes_its_job_along_and_no_other(own_broker: LiveBroker) -> None:
    first = own_broker.submit("sleep", "1000", gpus=1, retries=1, retry_on=["gpu-lost"], grace_ms=100)["id"]
    other = own_broker.submit("sleep", "1000", gpus=1)["id"]
    index, other_index = gpu_of(own_broker.running(first)), gpu_of(own_broker.running(other))
    lost = drill(own_broker, f"gpu{index}", "lost")
    assert (lost["state"], lost["health"]["verdict"], lost["memory_bytes_used"]) == ("quarantined", "quarantined", None)
    assert lost["health"]["reason"]["code"] == "gpu_fell_away"
    again = wait_until(lambda: (j := own_broker.job(first))["attempt"] == 2 and j["state"] == "running" and j)
    assert gpu_of(again) not in (index, other_index)
    assert own_broker.job(other)["state"] == "running"
    kinds = own_broker.kinds(first)
    assert kinds.count("lost") == 1 and kinds.count("requeued") == 1
    waiting = own_broker.submit("true", gpus=6)["id"]
    reason = why(own_broker, waiting)
    assert (reason["code"], reason["gpus"], reason["index"]) == ("gpu_quarantined", 1, index)
    uuids = [g["uuid"] for g in own_broker.client.call("GET", "/v1/gpus")["gpus"]]
    restored = drill(own_broker, f"gpu{index}", "restore")
    assert (restored["uuid"], restored["health"]["verdict"]) == (uuids[index], "healthy")
    assert own_broker.wait(waiting)["state"] == "completed"
    events = own_broker.client.call("GET", "/v1/events")["events"]
    assert [e["kind"] for e in events if e["kind"].startswith("gpu_")] == ["gpu_quarantined", "gpu_restored"]
    assert [e["gpu"] for e in events if e["kind"].startswith("gpu_")] == [uuids[index]] * 2
    assert [e["sequence"] for e in events] == list(range(1, len(events) + 1))


@pytest.mark.parametrize(
    ("xid", "verdict"), [(13, "healthy"), (63, "healthy"), (95, "quarantined"), (48, "quarantined")]
)
def test_an_xid_does_what_its_kind_asks(own_broker: LiveBroker, xid: int, verdict: str) -> None:
    job = own_broker.submit("sh", "-c", "trap 'exit 9' TERM; while :; do sleep 0.01; done", gpus=1)["id"]
    index = gpu_of(own_broker.running(job))
    struck = drill(own_broker, f"gpu{index}", "xid", str(xid))
    assert struck["health"]["verdict"] == verdict
    assert own_broker.job(job)["state"] == "running"
    assert own_broker.job(job)["xid"] == xid
    os.kill(own_broker.job(job)["pid"], signal.SIGTERM)
    ended = own_broker.wait(job)
    assert (ended["state"], ended["exit_code"], ended["reason"]["code"]) == ("failed", 9, "failed_after_xid")
    assert own_broker.kinds(job).count("gpu_error") == 1


def test_a_gpu_off_the_bus_is_out_until_the_machine_starts_anew(own_broker: LiveBroker) -> None:
    job = own_broker.submit("sleep", "1000", gpus=8, grace_ms=0)["id"]
    own_broker.running(job)
    assert drill(own_broker, "gpu2", "xid", "79")["health"]["verdict"] == "quarantined"
    ended = own_broker.wait(job)
    assert (ended["state"], ended["reason"]["code"]) == ("lost", "gpu_lost")
    own_broker.kill()
    own_broker.up()
    assert gpu(own_broker, 2)["health"]["reason"]["xid"] == 79
    own_broker.kill()
    own_broker.environment["COURTIER_BOOT_ID"] = "the-next-boot"
    own_broker.up()
    wait_until(lambda: gpu(own_broker, 2)["health"]["verdict"] == "healthy", "a healthy GPU after the boot")


def test_a_hanging_gpu_comes_back_by_itself(own_broker: LiveBroker) -> None:
    hung = drill(own_broker, "gpu0", "hang", "1s")
    assert hung["health"]["reason"]["code"] == "gpu_hung"
    assert own_broker.wait(own_broker.submit("true", gpus=7)["id"])["state"] == "completed"
    waiting = own_broker.submit("true", gpus=8)["id"]
    assert own_broker.wait(waiting)["state"] == "completed"
    assert gpu(own_broker, 0)["health"]["verdict"] == "healthy"


def test_memory_used_from_outside_is_seen_and_counted(own_broker: LiveBroker) -> None:
    used = drill(own_broker, "gpu0", "external", "78G")
    assert used["state"] == "external"
    (process,) = used["external"]
    assert (process["user"], process["memory_bytes"]) == ("drill", 78 * GIB)
    waiting = own_broker.submit("true", gpus=8)["id"]
    reason = why(own_broker, waiting)
    assert (reason["code"], reason["used_bytes"], reason["index"]) == ("gpu_external", 78 * GIB, 0)
    assert "courtier drill external" in reason["text"]
    small = own_broker.submit("sleep", "1000", gpu_memory_bytes=GIB)["id"]
    assert gpu_of(own_broker.running(small)) == 0
    large = own_broker.submit("sleep", "1000", gpu_memory_bytes=4 * GIB)["id"]
    assert gpu_of(own_broker.running(large)) != 0
    for job in (small, large):
        own_broker.post(job, "cancel", {"now": True})
    drill(own_broker, "gpu0", "external", "0")
    assert own_broker.wait(waiting)["state"] == "completed"


def test_a_job_that_takes_more_than_it_declared_is_stopped(own_broker: LiveBroker) -> None:
    shared = own_broker.submit("sleep", "1000", gpu_memory_bytes=10 * GIB, grace_ms=0)["id"]
    whole = own_broker.submit("sleep", "1000", gpus=1)["id"]
    index, whole_index = gpu_of(own_broker.running(shared)), gpu_of(own_broker.running(whole))
    drill(own_broker, f"gpu{index}", "overuse", "4G")
    drill(own_broker, f"gpu{whole_index}", "overuse", "4G")
    ended = own_broker.wait(shared)
    assert (ended["state"], ended["reason"]["code"]) == ("out_of_memory", "gpu_memory_overuse")
    assert (ended["reason"]["used_bytes"], ended["reason"]["declared_bytes"]) == (14 * GIB, 10 * GIB)
    assert own_broker.job(whole)["state"] == "running"


def test_a_hot_gpu_is_degraded_and_works(own_broker: LiveBroker) -> None:
    hot = drill(own_broker, "gpu1", "hot", "95")
    assert (hot["temperature_celsius"], hot["health"]["verdict"], hot["health"]["reason"]["code"]) == (
        95,
        "degraded",
        "gpu_hot",
    )
    assert own_broker.wait(own_broker.submit("true", gpus=8)["id"])["state"] == "completed"


def test_memory_that_the_driver_does_not_tell_is_absent_and_the_gpu_works(own_broker: LiveBroker) -> None:
    hidden = drill(own_broker, "gpu3", "memory-not-supported")
    assert (hidden["memory_bytes_used"], hidden["health"]["verdict"]) == (None, "healthy")
    assert own_broker.wait(own_broker.submit("true", gpus=8)["id"])["state"] == "completed"


def test_a_driver_that_was_replaced_holds_new_jobs_and_leaves_running_ones(own_broker: LiveBroker) -> None:
    running = own_broker.submit("sleep", "1000", gpus=1)["id"]
    own_broker.running(running)
    drill(own_broker, "gpu0", "driver-mismatch")
    waiting = own_broker.submit("true", gpus=1)["id"]
    assert why(own_broker, waiting)["code"] == "gpu_quarantined"
    assert "driver" in why(own_broker, waiting)["text"]
    assert own_broker.job(running)["state"] == "running"
    assert own_broker.wait(own_broker.submit("true")["id"])["state"] == "completed"
    assert own_broker.cli("doctor", check=False).returncode == 1
    drill(own_broker, "gpu0", "restore")
    assert own_broker.wait(waiting)["state"] == "completed"


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        (["gpu99", "lost"], 5),
        (["gpuX", "lost"], 2),
        (["gpu0", "burn"], 2),
        (["gpu0", "xid"], 2),
        (["gpu0", "xid", "many"], 2),
        (["gpu0", "lost", "5"], 2),
        (["gpu0", "external", "-1G"], 2),
    ],
)
def test_drills_that_are_none(broker: LiveBroker, words: list[str], exit_code: int) -> None:
    assert broker.cli("drill", *words, check=False).returncode == exit_code


def test_somebody_comes_between_the_decision_and_the_start(own_broker: LiveBroker) -> None:
    """The last look: what was free when it was chosen is not when it is read again."""
    own_broker.submit("sleep", "1000", gpus=7)
    holder = own_broker.submit("sleep", "1000", gpus=1)["id"]
    index = gpu_of(own_broker.running(holder))
    waiting = own_broker.submit("true", gpus=1)["id"]
    drill(own_broker, f"gpu{index}", "external", "30G")
    own_broker.post(holder, "cancel", {"now": True})
    wait_until(lambda: why(own_broker, waiting)["code"] == "gpu_external", "a job that waits for outsiders")
    assert own_broker.kinds(waiting).count("started") == 0


def test_a_broker_that_only_watches_schedules_nothing(own_broker: LiveBroker) -> None:
    queued = own_broker.submit("true", gpus=1, hold=True)["id"]
    running = own_broker.submit("sleep", "1000", gpus=1)["id"]
    own_broker.running(running)
    own_broker.kill()
    own_broker.up("--watch-only")
    refused = own_broker.cli("submit", "-o", "json", "--", "true", check=False)
    assert refused.returncode == 1
    assert document(refused)["error"]["code"] == "watch_only"
    own_broker.post(queued, "release")
    assert why(own_broker, queued)["code"] == "watch_only"
    assert own_broker.job(running)["state"] == "running"
    drill(own_broker, "gpu3", "external", "20G")
    assert gpu(own_broker, 3)["external"][0]["memory_bytes"] == 20 * GIB
    own_broker.kill()
    own_broker.up()
    assert own_broker.wait(queued)["state"] == "completed"


@pytest.mark.parametrize(("asked", "given"), [("none", "none"), ("env", "env"), ("any", LEVEL), (None, LEVEL)])
def test_the_level_that_a_job_has_is_told(broker: LiveBroker, asked: str | None, given: str) -> None:
    job = broker.submit("sh", "-c", 'echo "${CUDA_VISIBLE_DEVICES-unset}"', gpus=1, isolation=asked or None)
    ended = broker.wait(job["id"])
    assert ended["allocation"]["isolation"] == given
    assert (broker.stdout(job["id"]) == "unset\n") is (given == "none")


def test_a_level_that_is_not_here_is_refused(broker: LiveBroker) -> None:
    refused = broker.cli("submit", "--isolation", "mps", "--", "true", check=False)
    assert refused.returncode == 2
