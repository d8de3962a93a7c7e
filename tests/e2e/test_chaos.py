"""Kills at times nobody chose: the daemon again and again while jobs stream through, on real processes."""

import contextlib
import os
import random
import signal
import threading
from pathlib import Path

import pytest

from conftest import LiveBroker, alive, wait_until
from courtier.api.client import NoBroker, RequestRefused

KILLS = 6
JOBS = 60


@pytest.mark.parametrize("seed", [1, 2])
def test_daemon_killed_again_and_again(own_broker: LiveBroker, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    acknowledged: dict[int, int] = {}
    done = threading.Event()

    def submit_all() -> None:
        for number in range(JOBS):
            code = number % 5
            script = f"echo x >> {tmp_path}/$COURTIER_JOB_ID; sleep 0.0{number % 7}; exit {code}"
            while True:
                try:
                    job = own_broker.submit("sh", "-c", script, gpus=1 + number % 3, key=f"{seed}-{number}")
                except (NoBroker, RequestRefused):
                    continue
                acknowledged[job["id"]] = code
                break
        done.set()

    submitter = threading.Thread(target=submit_all)
    submitter.start()
    for _ in range(KILLS):
        before = len(acknowledged)
        target = before + rng.randint(1, 8)
        wait_until(lambda target=target: len(acknowledged) >= target or done.is_set(), "some more submits")
        with contextlib.suppress(NoBroker):
            own_broker.kill()
        own_broker.up()
    submitter.join()
    assert len(acknowledged) == JOBS
    for number, code in acknowledged.items():
        ended = own_broker.wait(number)
        assert (ended["exit_code"], ended["attempt"]) == (code, 1), ended
        assert (tmp_path / str(number)).read_text() == "x\n"
        kinds = own_broker.kinds(number)
        assert (kinds.count("submitted"), kinds.count("started"), kinds.count("exited")) == (1, 1, 1)
    wait_until(lambda: own_broker.gpus_free() == 8, "all GPUs free")
    sequences = [event["sequence"] for event in own_broker.client.call("GET", "/v1/events")["events"]]
    assert sequences == list(range(1, len(sequences) + 1))


def test_supervisors_killed_at_random_lose_only_their_jobs(own_broker: LiveBroker, tmp_path: Path) -> None:
    rng = random.Random(3)
    script = f"echo x >> {tmp_path}/$COURTIER_JOB_ID.$COURTIER_ATTEMPT; sleep 0.3; exit 4"
    fields = {"gpus": 1, "retries": 20, "retry_on": ["node-lost"]}
    jobs = [own_broker.submit("sh", "-c", script, **fields)["id"] for _ in range(16)]
    killed: set[int] = set()

    def kill_one() -> bool:
        running = own_broker.client.call("GET", "/v1/jobs", state="running")["jobs"]
        if running:
            chosen = rng.choice(running)
            with contextlib.suppress(OSError, ValueError):
                os.kill(own_broker.supervisor(chosen["id"]), signal.SIGKILL)
                killed.add(chosen["pid"])
        return len(killed) >= 8 or not own_broker.client.call("GET", "/v1/jobs")["jobs"]

    wait_until(kill_one, "eight killed supervisors")
    assert killed
    for number in jobs:
        ended = own_broker.wait(number)
        assert (ended["state"], ended["exit_code"]) == ("failed", 4)
        starts = {path.name: path.read_text() for path in tmp_path.glob(f"{number}.*")}
        assert set(starts.values()) == {"x\n"}
        assert len(starts) <= ended["attempt"]
    assert not any(alive(pid) for pid in killed)
    wait_until(lambda: own_broker.gpus_free() == 8, "all GPUs free")
