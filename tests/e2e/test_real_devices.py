"""A broker on a real driver library: the fake one, which the real NVIDIA binding takes for a driver.

The public fault reports of one box: each with the behaviour that is right for it.
"""

import base64
import contextlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import LiveBroker, alive, wait_until
from nvml.world import LIB_RM_VERSION_MISMATCH, MIB, NOT_SUPPORTED, World, library_environment

GIB = 1 << 30
ANSWER_MS = 400
SETTINGS = ("--set", f"gpu_answer_ms={ANSWER_MS}", "--set", "telemetry_ms=100")
Make = Callable[..., LiveBroker]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def make() -> Iterator[Make]:
    base = Path(tempfile.mkdtemp(prefix="courtier-test-"))
    made: list[LiveBroker] = []

    def start(environment: dict[str, str], *more: str) -> LiveBroker:
        live = LiveBroker(base / "state", None, environment)
        made.append(live)
        live.up(*SETTINGS, *more)
        return live

    yield start
    for live in made:
        live.stop()
    shutil.rmtree(base, ignore_errors=True)


def gpus(live: LiveBroker) -> list[dict[str, Any]]:
    return live.client.call("GET", "/v1/gpus")["gpus"]  # type: ignore[no-any-return]


def why(live: LiveBroker, job: int) -> str:
    reasons = live.client.call("GET", f"/v1/jobs/{job}/why")["reasons"]
    return reasons[0]["code"] if reasons else ""


def holding(live: LiveBroker, world: World, number: int, memory_bytes: int | None) -> dict[str, Any]:
    """The job's process takes memory of its GPUs, as a CUDA program would."""
    job = live.running(number)
    for gpu in job["allocation"]["gpus"]:
        (place,) = [n for n in range(world.raw.gpu_count) if world.uuid(n) == gpu["uuid"]]
        world.process(place, job["pid"], memory_bytes)
    return job


def test_what_the_driver_shows_is_what_users_see(world: World, make: Make) -> None:
    world.add_gpus(8, nvlink=True)
    live = make(world.environment())
    seen = gpus(live)
    assert [gpu["uuid"] for gpu in seen] == [world.uuid(n) for n in range(8)]
    assert {gpu["model"] for gpu in seen} == {"A100-80GB"}
    assert {link["kind"] for link in seen[0]["links"]} == {"nvlink"}
    assert [gpu["numa_node"] for gpu in seen] == [0] * 4 + [1] * 4
    job = live.submit("sh", "-c", "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER", gpus=2)
    ended = live.wait(job["id"])
    given = ",".join(gpu["uuid"] for gpu in ended["allocation"]["gpus"])
    assert live.stdout(job["id"]) == f"{given} PCI_BUS_ID\n"
    refused = live.cli("drill", "gpu0", "lost", check=False)
    assert refused.returncode == 4


def test_inherited_variables_and_the_drivers_order_choose_nothing(world: World, make: Make) -> None:
    world.add_gpu("Tesla T4", memory_bytes_total=15360 * MIB)
    world.add_gpu()
    live = make({**world.environment(), "CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    pair = tuple(base64.b64encode(word).decode() for word in (b"CUDA_VISIBLE_DEVICES", b"0,1"))
    job = live.submit("sh", "-c", "echo $CUDA_VISIBLE_DEVICES", gpus=1, gpu_model="a100", environment_base64=[pair])
    live.wait(job["id"])
    assert live.stdout(job["id"]) == f"{world.uuid(1)}\n"
    cpu_job = live.submit("sh", "-c", 'echo "<$CUDA_VISIBLE_DEVICES>"', environment_base64=[pair])
    live.wait(cpu_job["id"])
    assert live.stdout(cpu_job["id"]) == "<>\n"


def test_memory_of_a_job_is_its_and_a_strangers_is_external(
    world: World, make: Make, stranger: subprocess.Popen[bytes]
) -> None:
    world.add_gpus(2)
    live = make(world.environment())
    job = live.submit("sleep", "1000", gpus=1)["id"]
    held = holding(live, world, job, 30 * GIB)
    index = held["allocation"]["gpus"][0]["index"]
    world.process(1 - index, stranger.pid, 70 * GIB)

    def told() -> bool:
        mine, other = gpus(live)[index], gpus(live)[1 - index]
        return mine["memory_bytes_used"] >= 30 * GIB and bool(other["external"]) and not mine["external"]

    wait_until(told, "both kinds of use")
    (process,) = gpus(live)[1 - index]["external"]
    assert (process["pid"], process["command"], process["memory_bytes"]) == (stranger.pid, "sleep 1000", 70 * GIB)
    assert process["user"]
    assert gpus(live)[1 - index]["state"] == "external"
    waiting = live.submit("true", gpus=1)["id"]
    wait_until(lambda: why(live, waiting) == "gpu_external", "the reason")
    stranger.kill()
    assert live.wait(waiting)["state"] == "completed"


def test_somebody_who_comes_between_two_readings_is_seen(
    world: World, make: Make, stranger: subprocess.Popen[bytes]
) -> None:
    world.add_gpus(1)
    live = make(world.environment(), "--set", "telemetry_ms=3600000")
    wait_until(lambda: gpus(live)[0]["memory_bytes_used"] is not None, "the first reading")
    world.process(0, stranger.pid, 78 * GIB)
    job = live.submit("true", gpus=1)["id"]
    wait_until(lambda: why(live, job) == "gpu_external", "the last look")
    assert live.job(job)["started_ms"] is None
    assert "start_revoked" in live.kinds(job)


def test_a_gpu_is_given_on_only_when_its_memory_is_back(world: World, make: Make) -> None:
    world.add_gpus(1)
    live = make(world.environment(), "--set", "reclaim_deadline_ms=300")
    job = live.submit("sleep", "1000", gpus=1)["id"]
    pid = holding(live, world, job, 10 * GIB)["pid"]
    wait_until(lambda: gpus(live)[0]["memory_bytes_used"] >= 10 * GIB, "memory in use")
    # The driver goes on listing a process that has gone, as it does with one that the kernel holds.
    world.forget(pid)
    world.process(0, pid, 10 * GIB, phantom=True)
    waiting = live.submit("true", gpus=1)["id"]
    live.post(job, "cancel", {"now": True})
    live.wait(job)
    wait_until(lambda: gpus(live)[0]["state"] in ("reclaiming", "external", "quarantined"), "a GPU that is not free")
    assert live.job(waiting)["state"] == "pending"
    world.forget(pid)
    assert live.wait(waiting)["state"] == "completed"


def test_a_gpu_that_hangs_is_set_aside_and_the_others_go_on(world: World, make: Make) -> None:
    world.add_gpus(4)
    live = make(world.environment())
    wait_until(lambda: all(gpu["memory_bytes_used"] is not None for gpu in gpus(live)))
    rule = world.rule("nvmlDeviceGetUtilizationRates", 2, hang=True)
    wait_until(lambda: gpus(live)[2]["health"]["verdict"] == "quarantined", "a hung GPU")
    assert gpus(live)[2]["health"]["reason"]["code"] == "gpu_hung"
    assert live.wait(live.submit("true", gpus=3)["id"])["state"] == "completed"
    blocked = live.submit("true", gpus=4)["id"]
    assert why(live, blocked) == "gpu_quarantined"
    assert live.cli("doctor", check=False).returncode == 1
    world.release(rule)
    assert live.wait(blocked)["state"] == "completed"


def test_a_lost_gpu_shifts_no_identity_at_a_restart_either(world: World, make: Make) -> None:
    world.add_gpus(3)
    live = make(world.environment())
    before = [(gpu["index"], gpu["uuid"]) for gpu in gpus(live)]
    job = live.submit("sleep", "1000", gpus=1, retries=1, retry_on=["gpu-lost"], grace_ms=0)["id"]
    index = live.running(job)["allocation"]["gpus"][0]["index"]
    world.lose(index)
    again = wait_until(lambda: (j := live.job(job))["attempt"] == 2 and j["state"] == "running" and j)
    assert again["allocation"]["gpus"][0]["index"] != index
    live.kill()
    world.remove(index)
    live.up(*SETTINGS)
    assert [(gpu["index"], gpu["uuid"]) for gpu in gpus(live)] == before
    wait_until(lambda: gpus(live)[index]["health"]["verdict"] == "quarantined", "the lost GPU, listed as lost")
    assert live.job(job)["state"] == "running"
    assert live.wait(live.submit("true", gpus=1)["id"])["state"] == "completed"


@pytest.mark.parametrize(("xid", "verdict"), [(31, "healthy"), (63, "healthy"), (119, "quarantined")])
def test_an_xid_reaches_the_job_and_the_gpu(world: World, make: Make, xid: int, verdict: str) -> None:
    world.add_gpus(2)
    live = make(world.environment())
    job = live.submit("sleep", "1000", gpus=1)["id"]
    index = live.running(job)["allocation"]["gpus"][0]["index"]
    wait_until(lambda: world.calls("nvmlEventSetWait_v2") > 0, "somebody who listens for events")
    world.xid(index, xid)
    wait_until(lambda: live.job(job)["xid"] == xid, "the Xid at its job")
    assert gpus(live)[index]["health"]["verdict"] == verdict
    assert live.job(job)["state"] == "running"


def test_unified_memory_is_the_machines(world: World, make: Make) -> None:
    world.add_gpu("NVIDIA GB10")
    world.rule("nvmlDeviceGetMemoryInfo", error=NOT_SUPPORTED)
    world.rule("nvmlDeviceGetMemoryInfo_v2", error=NOT_SUPPORTED)
    live = make(world.environment())
    (gpu,) = gpus(live)
    assert gpu["memory_bytes_total"] > GIB
    assert live.wait(live.submit("true", gpus=1)["id"])["state"] == "completed"
    assert live.wait(live.submit("true", gpu_memory_bytes=GIB)["id"])["state"] == "completed"


def test_a_driver_that_does_not_tell_memory_of_processes(
    world: World, make: Make, stranger: subprocess.Popen[bytes]
) -> None:
    world.add_gpus(1)
    live = make(world.environment())
    job = live.submit("sleep", "1000", gpu_memory_bytes=8 * GIB)["id"]
    holding(live, world, job, None)
    world.process(0, stranger.pid, None)
    wait_until(lambda: gpus(live)[0]["external"], "the stranger")
    assert gpus(live)[0]["external"][0]["memory_bytes"] is None
    assert live.wait(live.submit("true", gpu_memory_bytes=8 * GIB)["id"])["state"] == "completed"
    assert live.job(job)["state"] == "running"


def test_a_driver_replaced_while_jobs_run(world: World, make: Make) -> None:
    world.add_gpus(2)
    live = make(world.environment())
    job = live.submit("sh", "-c", "sleep 1000; exit 3", gpus=1)["id"]
    pid = live.running(job)["pid"]
    live.kill()
    world.rule("nvmlInitWithFlags", error=LIB_RM_VERSION_MISMATCH)
    live.up(*SETTINGS)
    assert live.job(job)["state"] == "running" and alive(pid)
    waiting = live.submit("true", gpus=1)["id"]
    wait_until(lambda: why(live, waiting) == "gpu_quarantined", "the reason")
    reason = live.client.call("GET", f"/v1/jobs/{waiting}/why")["reasons"][0]
    assert "driver" in reason["text"]
    assert live.wait(live.submit("true")["id"])["state"] == "completed"
    doctor = live.cli("doctor", check=False)
    assert doctor.returncode == 1
    assert b"mismatch" in doctor.stdout.lower() or b"differ" in doctor.stdout.lower()


@pytest.mark.parametrize("kind", ["none", "stub", "broken"])
def test_a_machine_without_a_driver_runs_jobs_without_gpus(make: Make, kind: str) -> None:
    live = make(library_environment(kind))
    assert gpus(live) == []
    assert live.wait(live.submit("true")["id"])["state"] == "completed"
    refused = live.cli("submit", "--gpus", "1", "--", "true", check=False)
    assert refused.returncode == 2
    assert b"libnvidia-ml" in (text := live.cli("doctor", check=False).stdout) or b"stub" in text or b"driver" in text


def test_garbage_from_the_driver_breaks_nothing(world: World, make: Make) -> None:
    world.add_gpus(2)
    world.rule("nvmlDeviceGetName", 1, garbage=True)
    live = make(world.environment())
    assert live.wait(live.submit("true", gpus=1)["id"])["state"] == "completed"
    assert len(gpus(live)) == 2
    live.cli("gpus")


def test_the_second_broker_is_told_who_has_the_gpus(world: World, make: Make, tmp_path: Path) -> None:
    world.add_gpus(1)
    live = make(world.environment())
    other = LiveBroker(tmp_path / "other", None, world.environment())
    refused = other.cli("up", "--detach", check=False)
    assert refused.returncode == 1
    assert f"pid {live.pid}".encode() in refused.stderr
    simulated = LiveBroker(tmp_path / "simulated")
    simulated.up()
    simulated.stop()
    live.kill(signal.SIGKILL)
    with contextlib.suppress(AssertionError):
        other.up()
    assert other.client.health()["gpus"] == 1
    other.stop()
    live.up(*SETTINGS)


def test_a_gpu_that_is_divided_is_not_given_whole(world: World, make: Make) -> None:
    world.add_gpu(mig_mode=1)
    world.add_mig(0, "3g.40gb", 1, 40 * GIB)
    world.add_gpu()
    live = make(world.environment())
    assert [gpu["mode"] for gpu in gpus(live)] == ["mig", None]
    job = live.wait(live.submit("true", gpus=1)["id"])
    assert [gpu["uuid"] for gpu in job["allocation"]["gpus"]] == [world.uuid(1)]
    refused = live.cli("submit", "--gpus", "2", "--", "true", check=False)
    assert (refused.returncode, b"divided by MIG" in refused.stderr) == (2, True)


def test_processes_of_another_pid_namespace_are_nobodys(world: World, make: Make) -> None:
    """A broker in a container sees the machine's pids from the driver: a local process of that number is a stranger."""
    world.add_gpus(1)
    live = make(world.environment())
    for number in range(3):
        world.process(0, (1 << 22) + 10 + number, GIB, phantom=True)
    wait_until(lambda: gpus(live)[0]["external"], "processes that are not here")
    assert {(p["user"], p["command"]) for p in gpus(live)[0]["external"]} == {(None, None)}
