"""`make demo`: a broker on a simulated box, a mix of real commands through it, shown live, and a summary."""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from courtier.api.client import Client
from courtier.cli import render
from courtier.daemon.main import up

BOX = "4xA100-80GB+2xL4"
SECONDS_MAX = 60.0
# What is submitted: (command, fields of the submit).
JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("echo training on $CUDA_VISIBLE_DEVICES; sleep 3", {"name": "train", "gpus": 2, "class": "training"}),
    ("sleep 4", {"name": "serve-a", "gpu_memory_bytes": 18 << 30, "class": "inference"}),
    ("sleep 4", {"name": "serve-b", "gpu_memory_bytes": 30 << 30, "class": "inference"}),
    ("sleep 2", {"name": "big-model", "gpu_memory_bytes": 150 << 30, "split": True}),
    ("sleep 1; exit 3", {"name": "fails", "gpus": 1}),
    ("sleep 60", {"name": "too-long", "gpus": 1, "gpu_model": "L4", "time_limit_ms": 2000, "grace_ms": 500}),
    ("sleep 0.5", {"name": "sweep", "gpus": 1, "array": list(range(8)), "array_limit": 2}),
    ("python3 -c 'print(sum(range(10**6)))'", {"name": "cpu-only", "cpus": 2, "memory_bytes": 1 << 30}),
)


def _submit(client: Client) -> list[int]:
    numbers = []
    for line, fields in JOBS:
        body = {"command": ["/bin/sh", "-c", line], **fields}
        body["environment_base64"] = []
        numbers.append(client.call("POST", "/v1/jobs", body)["job"]["id"])
    last = {"command": ["true"], "name": "afterwards", "dependencies": [f"afterok:{numbers[0]}"]}
    numbers.append(client.call("POST", "/v1/jobs", last)["job"]["id"])
    return numbers


def _picture(client: Client) -> tuple[str, int]:
    """GPUs and jobs as they are, and how many jobs have not ended."""
    gpus = client.call("GET", "/v1/gpus")["gpus"]
    jobs = client.call("GET", "/v1/jobs")["jobs"]
    now_ms = time.time_ns() // 1_000_000
    text = render.table(render.GPU_HEADER, [render.gpu_row(gpu) for gpu in gpus])
    rows = [render.job_row(job, now_ms) for job in jobs[:14]]
    return text + "\n" + render.table(render.JOB_HEADER, rows), len(jobs)


def _show_live(client: Client) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    live = sys.stdout.isatty()
    shown = -1
    while time.monotonic() < deadline:
        picture, left = _picture(client)
        if live:
            render.write("\x1b[H\x1b[2J" + picture)
        elif left != shown:
            render.write(f"--- {left} jobs left\n{picture}\n")
        shown = left
        if not left:
            return
        time.sleep(0.5)


def main() -> int:
    """Exit code 0 when every job ended as it was meant to."""
    with tempfile.TemporaryDirectory(prefix="courtier-demo-") as folder:
        os.environ["COURTIER_HOME"] = folder
        print(f"A broker on a simulated box, {BOX}: real processes on GPUs that are not there.")
        if up(folder, BOX, True, None, {}) != 0:
            return 1
        client = Client(Path(folder))
        try:
            _submit(client)
            _show_live(client)
            return _summary(client)
        finally:
            client.raw("POST", "/v1/shutdown", {"cancel_jobs": True})
            while (Path(folder) / "broker.sock").exists():
                time.sleep(0.02)


def _summary(client: Client) -> int:
    jobs = client.call("GET", "/v1/history")["jobs"]
    ended: dict[str, int] = {}
    for job in jobs:
        ended[job["state"]] = ended.get(job["state"], 0) + 1
    waits = [job["started_ms"] - job["submitted_ms"] for job in jobs if job["started_ms"] is not None]
    print("\nSummary")
    render.write(render.table(render.JOB_HEADER, [render.job_row(job, 0) for job in jobs]))
    print("\n" + ", ".join(f"{count} {state}" for state, count in sorted(ended.items())))
    print(f"time from submit to start: shortest {min(waits)} ms, longest {max(waits)} ms")
    wanted = {"failed": 1, "timeout": 1}
    return 0 if {name: ended.get(name, 0) for name in wanted} == wanted and not ended.get("lost") else 1


if __name__ == "__main__":
    sys.exit(main())
