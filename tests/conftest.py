"""Fixtures of the whole suite: real brokers on simulated boxes, each in a home of its own."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from courtier.adapters.process.record import read_record
from courtier.api.client import Client, NoBroker, RequestRefused

# A change is judged on the same draws each time; HYPOTHESIS_PROFILE=explore looks further.
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", max_examples=3000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

DEADLINE_SECONDS = 30.0
# Deadlines are settings: tests of what happens after them need not wait as long as people do.
QUICK = {"sweep_ms": "200", "store_retry_ms": "100", "start_backoff_ms": "50"}


def wait_until(condition: Callable[[], Any], what: str = "the condition") -> Any:
    """The first true answer. Looks again until the deadline; the pause is no synchronisation, only politeness."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        time.sleep(0.005)
    raise AssertionError(f"{what} did not come true in {DEADLINE_SECONDS} s")


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rsplit(")", 1)[1].split()[0] not in "ZX"


def carrying(token: object) -> list[int]:
    """Living processes that carry a token in their arguments or environment: a fence gives them other pids inside."""
    wanted = str(token).encode()
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid() and alive(int(path.name)):
            with contextlib.suppress(OSError):
                if wanted in (path / "cmdline").read_bytes() or wanted in (path / "environ").read_bytes():
                    found.append(int(path.name))
    return found


class LiveBroker:
    """A real broker process and its client; box None: the GPUs that the driver shows."""

    def __init__(self, home: Path, box: str | None = "8xA100-80GB", environment: dict[str, str] | None = None) -> None:
        self.home = home
        self.box = box
        self.environment = {**os.environ, **(environment or {}), "COURTIER_HOME": str(home)}
        self.client = Client(home)

    def cli(self, *words: str, stdin: bytes = b"", check: bool = True) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [sys.executable, "-m", "courtier.cli.main", *words],
            check=False,
            env=self.environment,
            input=stdin,
            capture_output=True,
            timeout=60,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"courtier {words}: {done.returncode}: {done.stderr.decode()}")
        return done

    def up(self, *more: str) -> None:
        settings = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]
        box = ["--simulate", self.box] if self.box is not None else []
        self.cli("up", *box, "--detach", *settings, *more)

    @property
    def pid(self) -> int:
        return int(self.client.health()["pid"])

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kills the daemon and waits until it is gone."""
        pid = self.pid
        os.kill(pid, number)
        wait_until(lambda: not alive(pid), "the daemon's death")

    def submit(self, *command: str, **fields: Any) -> dict[str, Any]:
        job: dict[str, Any] = self.client.call("POST", "/v1/jobs", {"command": list(command), **fields})["job"]
        return job

    def job(self, number: int) -> dict[str, Any]:
        job: dict[str, Any] = self.client.call("GET", f"/v1/jobs/{number}")["job"]
        return job

    def wait(self, number: int, until: str = "ended") -> dict[str, Any]:
        def ended() -> dict[str, Any] | None:
            answer = self.client.call("GET", f"/v1/jobs/{number}/wait", timeout_ms=5000, until=until)
            return answer if answer["done"] else None

        answer = wait_until(ended, f"job {number} {until}")
        return answer["jobs"][0]  # type: ignore[no-any-return]

    def running(self, number: int) -> dict[str, Any]:
        return wait_until(lambda: (j := self.job(number))["state"] == "running" and j, f"job {number} running")  # type: ignore[no-any-return]

    def post(self, number: int, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.client.call("POST", f"/v1/jobs/{number}/{verb}", body)

    def stdout(self, number: int) -> str:
        return self.client.raw("GET", f"/v1/jobs/{number}/logs").decode()

    def kinds(self, number: int) -> list[str]:
        return [event["kind"] for event in self.client.call("GET", "/v1/events", job=number)["events"]]

    def supervisor(self, number: int) -> int:
        """The pid of the job's supervisor, as its claim says."""
        (folder,) = (self.home / "run").glob(f"{number}.*")
        record = read_record(str(folder))
        assert record is not None and record.claim is not None
        return int(record.claim["pid"])

    def gpus_free(self) -> int:
        return sum(1 for gpu in self.client.call("GET", "/v1/gpus")["gpus"] if gpu["state"] == "free")

    def stop(self) -> None:
        with contextlib.suppress(NoBroker, RequestRefused):
            for job in self.client.call("GET", "/v1/jobs")["jobs"]:
                with contextlib.suppress(RequestRefused):
                    self.post(job["id"], "cancel", {"now": True})
        with contextlib.suppress(NoBroker):
            self.client.call("POST", "/v1/shutdown", {"cancel_jobs": True})
            wait_until(lambda: not (self.home / "broker.sock").exists(), "the end of the broker")


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is nobody's business here."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def broker() -> Iterator[LiveBroker]:
    """A broker shared by the tests of one module: for tests that leave it as they found it."""
    yield from _broker()


@pytest.fixture
def own_broker() -> Iterator[LiveBroker]:
    """A broker for one test, that may kill it."""
    yield from _broker()


def _broker() -> Iterator[LiveBroker]:
    home = Path(tempfile.mkdtemp(prefix="courtier-test-"))
    live = LiveBroker(home / "state")
    live.up()
    try:
        yield live
    finally:
        live.stop()
        shutil.rmtree(home, ignore_errors=True)


def document(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    """The one JSON document on a command's stdout."""
    return json.loads(done.stdout)  # type: ignore[no-any-return]
