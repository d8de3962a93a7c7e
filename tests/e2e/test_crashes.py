"""What survives when the daemon, a supervisor, both, or the machine go: on real processes.

After each: no accepted job lost, no id reused, at most one start per attempt, exit codes exact where the
supervisor lived, no GPU leaked, no stranger signalled.
"""

import os
import signal
import sys
from pathlib import Path

import pytest

from conftest import LiveBroker, alive, carrying, wait_until


def test_exit_code_is_exact_when_the_job_ends_while_the_daemon_is_dead(own_broker: LiveBroker, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = f"while [ ! -e {gate} ]; do sleep 0.01; done; exit 7"
    job = own_broker.submit("sh", "-c", script, gpus=2)
    pid = own_broker.running(job["id"])["pid"]
    own_broker.kill()
    gate.touch()
    wait_until(lambda: not alive(pid), "the end of the job")
    own_broker.up()
    ended = own_broker.wait(job["id"])
    assert (ended["state"], ended["exit_code"], ended["attempt"]) == ("failed", 7, 1)
    assert own_broker.kinds(job["id"]) == ["submitted", "eligible", "placed", "started", "exited", "finished"]
    wait_until(lambda: own_broker.gpus_free() == 8, "all GPUs free")


def test_running_job_is_adopted_and_can_be_cancelled(own_broker: LiveBroker) -> None:
    job = own_broker.submit("sleep", "1000", gpus=8)
    pid = own_broker.running(job["id"])["pid"]
    waiting = own_broker.submit("true", gpus=1)
    own_broker.kill()
    assert alive(pid)
    own_broker.up()
    assert own_broker.job(job["id"])["state"] == "running"
    own_broker.post(job["id"], "cancel", {"now": True})
    assert own_broker.wait(job["id"])["state"] == "cancelled"
    assert own_broker.wait(waiting["id"])["state"] == "completed"
    assert not alive(pid)


def test_killed_supervisor_takes_the_whole_tree_along(own_broker: LiveBroker, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    child = (
        f"import os,time; os.setsid(); os.fork() and os._exit(0); open({str(ready)!r},'a').write('x'); time.sleep(1000)"
    )
    script = f'{sys.executable} -c "{child}" & {sys.executable} -c "{child}" & sleep 1000'
    job = own_broker.submit("sh", "-c", script, gpus=1)
    leader = own_broker.running(job["id"])["pid"]
    wait_until(lambda: ready.exists() and ready.read_text() == "xx", "two escaped processes")
    assert len(carrying(ready)) >= 3
    os.kill(own_broker.supervisor(job["id"]), signal.SIGKILL)
    ended = own_broker.wait(job["id"])
    assert ended["state"] == "lost"
    assert ended["reason"]["code"] == "supervisor_lost"
    assert not alive(leader) and not carrying(ready)
    wait_until(lambda: own_broker.gpus_free() == 8, "all GPUs free")


def test_daemon_and_supervisor_killed_together(own_broker: LiveBroker, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    script = f"echo x >> {starts}; sleep 1000"
    job = own_broker.submit("sh", "-c", script, gpus=1, retries=1, retry_on=["node-lost"])
    leader = own_broker.running(job["id"])["pid"]
    supervisor = own_broker.supervisor(job["id"])
    own_broker.kill()
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not alive(leader), "the job's death with its supervisor, without a daemon")
    own_broker.up()
    again = wait_until(lambda: (j := own_broker.job(job["id"]))["state"] == "running" and j["attempt"] == 2 and j)
    assert again["pid"] != leader
    wait_until(lambda: starts.read_text().count("x") == 2, "the second start")
    kinds = own_broker.kinds(job["id"])
    assert kinds.count("lost") == 1 and kinds.count("requeued") == 1 and kinds.count("started") == 2


def test_new_boot_loses_running_jobs_and_signals_nobody(own_broker: LiveBroker) -> None:
    job = own_broker.submit("sleep", "1000", gpus=1)
    pid = own_broker.running(job["id"])["pid"]
    queued = own_broker.submit("true", gpus=1, hold=True)
    supervisor = own_broker.supervisor(job["id"])
    own_broker.kill()
    own_broker.environment["COURTIER_BOOT_ID"] = "another-boot"
    own_broker.up()
    ended = own_broker.wait(job["id"])
    assert (ended["state"], ended["reason"]["code"]) == ("lost", "node_rebooted")
    assert own_broker.job(queued["id"])["state"] == "held"
    assert alive(pid) and alive(supervisor)
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not alive(pid))


def test_ids_are_never_reused_after_a_kill(own_broker: LiveBroker) -> None:
    seen: set[int] = set()
    for _ in range(4):
        seen.update(own_broker.submit("true", hold=True)["id"] for _ in range(3))
        own_broker.kill()
        own_broker.up()
    listed = {job["id"] for job in own_broker.client.call("GET", "/v1/jobs")["jobs"]}
    assert len(seen) == 12
    assert listed == seen


def test_stopped_daemon_goes_on_where_it_was(own_broker: LiveBroker) -> None:
    job = own_broker.submit("sleep", "0.2", gpus=1)
    pid = own_broker.pid
    own_broker.running(job["id"])
    os.kill(pid, signal.SIGSTOP)
    record = next((own_broker.home / "run").glob(f"{job['id']}.1.*/record"))
    wait_until(lambda: b"finished_ms" in record.read_bytes(), "the end on disk")
    os.kill(pid, signal.SIGCONT)
    ended = own_broker.wait(job["id"])
    assert (ended["state"], ended["exit_code"]) == ("completed", 0)


def test_killed_fork_server_is_replaced(own_broker: LiveBroker) -> None:
    job = own_broker.submit("sleep", "1000", gpus=1)
    own_broker.running(job["id"])
    supervisor = own_broker.supervisor(job["id"])
    server = int(Path(f"/proc/{supervisor}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: not alive(server))
    assert own_broker.wait(own_broker.submit("true", gpus=1)["id"])["state"] == "completed"
    assert own_broker.job(job["id"])["state"] == "running"
    os.kill(supervisor, signal.SIGKILL)
    assert own_broker.wait(job["id"])["state"] == "lost"


def test_home_on_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    import subprocess

    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(home)], check=True)
    live = LiveBroker(home / "state")
    try:
        live.up()
        gate = tmp_path / "gate"
        job = live.submit("sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.01; done; exit 5", gpus=1)
        live.running(job["id"])
        filler = home / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass
        refused = live.cli("submit", "-o", "json", "--", "true", check=False)
        assert refused.returncode == 1, refused
        assert b"disk is full" in refused.stderr
        gate.touch()
        record = next((live.home / "run").glob(f"{job['id']}.1.*/record"))
        wait_until(lambda: b"finished_ms" in record.read_bytes(), "the end on the full disk")
        filler.unlink()
        ended = live.wait(job["id"])
        assert (ended["state"], ended["exit_code"]) == ("failed", 5)
        assert live.wait(live.submit("true")["id"])["state"] == "completed"
    finally:
        live.stop()
        subprocess.run(["umount", "-l", str(home)], check=True)


def test_a_polite_end_is_an_end(own_broker: LiveBroker) -> None:
    job = own_broker.submit("sleep", "1000", gpus=1)
    pid = own_broker.running(job["id"])["pid"]
    own_broker.kill(signal.SIGTERM)
    assert not (own_broker.home / "broker.sock").exists()
    assert alive(pid)
    own_broker.up()
    assert own_broker.job(job["id"])["state"] == "running"


def test_traces_of_ended_attempts_go(own_broker: LiveBroker) -> None:
    job = own_broker.submit("true")
    own_broker.wait(job["id"])
    stale = own_broker.home / "run" / f"{job['id']}.1.99"
    own_broker.kill()
    stale.mkdir()
    own_broker.up()

    def traces() -> list[str]:
        return [path.name for path in (own_broker.home / "run").iterdir() if path.name[0].isdigit()]

    wait_until(lambda: not traces(), "an empty run folder")
    assert own_broker.wait(own_broker.submit("true")["id"])["attempt"] == 1
