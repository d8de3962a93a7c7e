"""`run`, `shell` and `attach` at a terminal, and what becomes of a job whose terminal goes away."""

import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path

from conftest import LiveBroker, alive, wait_until


def at_terminal(broker: LiveBroker, *words: str) -> tuple[subprocess.Popen[bytes], int]:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "courtier.cli.main", *words],
        env=broker.environment,
        stdin=slave,
        stdout=slave,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(slave)
    return process, master


def read_until(master: int, wanted: bytes) -> bytes:
    seen = b""

    def more() -> bool:
        nonlocal seen
        if select.select([master], [], [], 1)[0]:
            seen += os.read(master, 4096)
        return wanted in seen

    wait_until(more, repr(wanted))
    return seen


def test_a_job_at_a_terminal_has_one(broker: LiveBroker) -> None:
    process, master = at_terminal(
        broker, "run", "--", "sh", "-c", "test -t 0 && read x && echo got $x; stty size; exit 5"
    )
    os.write(master, b"hello\n")
    read_until(master, b"got hello")
    assert process.wait(30) == 5
    os.close(master)


def test_a_job_ends_with_its_terminal(broker: LiveBroker) -> None:
    process, master = at_terminal(
        broker, "run", "--grace", "200ms", "--gpus", "1", "--", "sh", "-c", "echo up .; sleep 1000"
    )
    read_until(master, b" .")
    (running,) = broker.client.call("GET", "/v1/jobs", state="running")["jobs"]
    pid = running["pid"]
    process.kill()
    process.wait()
    os.close(master)
    wait_until(lambda: not alive(pid), "the job's end")
    wait_until(lambda: broker.gpus_free() == 8)
    assert broker.client.call("GET", "/v1/history", limit=1)["jobs"][0]["reason"]["code"] == "client_gone"


def test_ctrl_c_cancels(broker: LiveBroker) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "courtier.cli.main",
            "run",
            "--grace",
            "5s",
            "--",
            "sh",
            "-c",
            "echo up; exec sleep 1000",
        ],
        env=broker.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 143
    process.stdout.close()


def test_attach_shows_output_from_now_on(broker: LiveBroker, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = broker.submit("sh", "-c", f"while [ ! -e {gate} ]; do echo tick; sleep 0.02; done; echo seen")
    broker.running(job["id"])
    process = subprocess.Popen(
        [sys.executable, "-m", "courtier.cli.main", "attach", str(job["id"])],
        env=broker.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"tick\n"
    gate.touch()
    assert process.stdout.read().endswith(b"seen\n")
    assert process.wait(30) == 0
    process.stdout.close()


def test_supervisors_live_outside_the_daemon_s_cgroup(broker: LiveBroker) -> None:
    job = broker.submit("sleep", "1000")
    broker.running(job["id"])
    with open(f"/proc/{broker.supervisor(job['id'])}/cgroup") as file:
        lines = file.read()
    writable = os.geteuid() == 0
    assert ("courtier-" in lines) == writable
    broker.post(job["id"], "cancel", {"now": True})
    assert broker.wait(job["id"])["state"] == "cancelled"
