"""A broker of its own for measuring: a simulated box in a temporary home, driven through its public face only."""

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

COURTIER = str(Path(__file__).resolve().parent.parent / ".venv" / "bin" / "courtier")


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(self._path))


class BenchBroker:
    """Use as a context manager."""

    def __init__(self, box: str | None = "8xA100-80GB", environment: dict[str, str] | None = None) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="courtier-bench-"))
        self.environment = {**os.environ, **(environment or {}), "COURTIER_HOME": str(self.home)}
        self._box = box

    def __enter__(self) -> "BenchBroker":
        self.command("up", *(["--simulate", self._box] if self._box is not None else []), "--detach")
        self._connection = _Connection(self.home / "broker.sock")
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self.command("down", "--cancel-jobs")
        shutil.rmtree(self.home, ignore_errors=True)

    def command(self, *words: str) -> bytes:
        return subprocess.run(
            [COURTIER, *words], env=self.environment, check=True, capture_output=True, stdin=subprocess.DEVNULL
        ).stdout

    def call(self, method: str, path: str, body: object = None) -> dict:
        self._connection.request(method, path, json.dumps(body) if body is not None else None)
        answer = json.loads(self._connection.getresponse().read())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def submit(self, *command: str, **fields: object) -> dict:
        return self.call("POST", "/v1/jobs", {"command": list(command), **fields})["job"]

    def wait(self, number: int) -> list[dict]:
        while True:
            answer = self.call("GET", f"/v1/jobs/{number}/wait?timeout_ms=30000")
            if answer["done"]:
                return answer["jobs"]

    @property
    def pid(self) -> int:
        return int(self.call("GET", "/healthz")["pid"])

    def rss_mib(self) -> float:
        text = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in text.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(values: list[float], percent: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100).__int__() - 1)]


def timed(action: object, runs: int) -> list[float]:
    """Milliseconds of each run."""
    found = []
    for _ in range(runs):
        begin = time.perf_counter()
        action()  # type: ignore[operator]
        found.append((time.perf_counter() - begin) * 1000)
    return found
