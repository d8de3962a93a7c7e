"""The main job, on real processes: submit, queue, run, wait, cancel, retry, explain."""

import os
import sys
from pathlib import Path

import pytest

from conftest import LiveBroker, carrying, document, wait_until


def test_streams_and_exit_code(broker: LiveBroker) -> None:
    job = broker.submit("sh", "-c", "echo out; echo err >&2; exit 3")
    ended = broker.wait(job["id"])
    assert (ended["state"], ended["state_code"], ended["exit_code"]) == ("failed", "F", 3)
    logs = broker.cli("logs", str(job["id"]))
    assert (logs.stdout, logs.stderr) == (b"out\n", b"err\n")
    assert broker.cli("logs", "--stderr", str(job["id"])).stdout == b"err\n"


def test_environment_of_a_gpu_job(broker: LiveBroker) -> None:
    job = broker.submit("env", "-0", gpus=2, environment_base64=[])
    broker.wait(job["id"])
    variables = dict(word.split("=", 1) for word in broker.stdout(job["id"]).split("\0") if word)
    uuids = [gpu["uuid"] for gpu in broker.job(job["id"])["allocation"]["gpus"]]
    assert variables["CUDA_VISIBLE_DEVICES"].split(",") == uuids
    assert variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert variables["PET_NPROC_PER_NODE"] == "2"
    assert variables["MASTER_PORT"] == variables["PET_MASTER_PORT"]
    assert "WORLD_SIZE" not in variables
    assert "COURTIER_READY_FD" not in variables and "PYTHONPATH" not in variables


def test_job_without_gpus_sees_none(broker: LiveBroker) -> None:
    job = broker.submit("sh", "-c", 'echo "[$CUDA_VISIBLE_DEVICES]"')
    broker.wait(job["id"])
    assert broker.stdout(job["id"]) == "[]\n"


def test_job_gets_only_its_three_streams(broker: LiveBroker) -> None:
    code = "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:4])"
    job = broker.submit(sys.executable, "-c", code)
    broker.wait(job["id"])
    # The fourth is the listing's own descriptor.
    assert broker.stdout(job["id"]) == "[0, 1, 2, 3]\n"


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [(["/nonexistent"], 127), (["no-such-command-anywhere"], 127), (["/etc/passwd"], 126), (["/"], 126)],
)
def test_commands_that_can_not_be_started(broker: LiveBroker, command: list[str], exit_code: int) -> None:
    ended = broker.wait(broker.submit(*command)["id"])
    assert (ended["state"], ended["exit_code"], ended["reason"]["code"]) == ("failed", exit_code, "not_started")


def test_missing_directory_is_named(broker: LiveBroker) -> None:
    ended = broker.wait(broker.submit("true", directory_base64="L25vd2hlcmU=")["id"])
    assert ended["state"] == "failed"
    assert "/nowhere" in ended["reason"]["text"]


def test_time_limit(broker: LiveBroker) -> None:
    ended = broker.wait(broker.submit("sh", "-c", "trap '' TERM; sleep 100", time_limit_ms=200, grace_ms=100)["id"])
    assert (ended["state"], ended["state_code"], ended["reason"]["code"]) == ("timeout", "TO", "time_limit")


def test_cancel_ends_the_whole_tree(broker: LiveBroker, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        "import os,signal,time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        f"open({str(ready)!r}, 'w').write('x')\n"
        "time.sleep(1000)"
    )
    job = broker.submit("sh", "-c", f'{sys.executable} -c "$0"; sleep 1000', code, gpus=1, grace_ms=100)
    wait_until(ready.exists)
    assert len(carrying(ready)) >= 2
    broker.post(job["id"], "cancel", {})
    assert broker.wait(job["id"])["state"] == "cancelled"
    assert not carrying(ready)


def test_left_behind_processes_are_ended_and_the_exit_code_kept(broker: LiveBroker, tmp_path: Path) -> None:
    job = broker.submit("sh", "-c", "sleep 1000 & exit 4", name=str(tmp_path), grace_ms=100)
    ended = broker.wait(job["id"])
    assert (ended["state"], ended["exit_code"]) == ("failed", 4)
    assert not carrying(tmp_path)


def test_whole_gpus_are_never_given_twice(broker: LiveBroker) -> None:
    first = broker.submit("sleep", "1000", gpus=6)
    broker.running(first["id"])
    second = broker.submit("sleep", "0", gpus=3)
    why = document(broker.cli("why", str(second["id"]), "-o", "json"))
    assert why["reasons"][0]["code"] == "resources"
    assert (why["reasons"][0]["gpus"], why["reasons"][0]["gpus_free"]) == (3, 2)
    broker.post(first["id"], "cancel", {"now": True})
    assert broker.wait(second["id"])["state"] == "completed"


def test_shared_gpu_by_declared_memory(broker: LiveBroker) -> None:
    jobs = [broker.submit("sleep", "1000", gpu_memory_bytes=18 << 30) for _ in range(3)]
    rows = [broker.running(job["id"]) for job in jobs]
    assert len({row["allocation"]["gpus"][0]["uuid"] for row in rows}) == 1
    index = rows[0]["allocation"]["gpus"][0]["index"]
    wait_until(lambda: broker.client.call("GET", "/v1/gpus")["gpus"][index]["memory_bytes_used"] >= 54 << 30)
    gpu = broker.client.call("GET", "/v1/gpus")["gpus"][index]
    assert (gpu["mode"], len(gpu["tenants"]), gpu["memory_bytes_allocated"]) == ("shared", 3, 54 << 30)
    for job in jobs:
        broker.post(job["id"], "cancel", {"now": True})
        broker.wait(job["id"])
    wait_until(lambda: broker.gpus_free() == 8)


def test_overuse_of_a_shared_gpu_is_stopped(broker: LiveBroker) -> None:
    job = broker.submit("sleep", "1000", gpu_memory_bytes=10 << 30, memory_bytes_simulated=30 << 30, grace_ms=100)
    ended = broker.wait(job["id"])
    assert (ended["state"], ended["reason"]["code"]) == ("out_of_memory", "gpu_memory_overuse")


def test_memory_limit_is_counted_not_guessed(broker: LiveBroker) -> None:
    greedy = broker.submit(sys.executable, "-c", "x = bytearray(300 << 20)", memory_bytes=100 << 20)
    killed = broker.submit("sh", "-c", "kill -9 $$", memory_bytes=100 << 20)
    assert broker.wait(killed["id"])["state"] == "failed"
    assert broker.wait(greedy["id"])["state"] == "out_of_memory"


def test_array_limit_and_dependencies(broker: LiveBroker) -> None:
    answer = broker.client.call(
        "POST", "/v1/jobs", {"command": ["sleep", "0.05"], "array": list(range(6)), "array_limit": 2}
    )
    array = answer["job"]["array_id"]
    assert [job["array_index"] for job in answer["jobs"]] == list(range(6))
    after = broker.submit("true", dependencies=[f"afterok:{array}"])
    never = broker.submit("true", dependencies=[f"afternotok:{array}"])
    chained = broker.submit("true", dependencies=[f"afterok:{never['id']}"])
    assert broker.wait(after["id"])["state"] == "completed"
    for job in (never, chained):
        ended = broker.wait(job["id"])
        assert (ended["state"], ended["reason"]["code"]) == ("cancelled", "dependency_never")
    jobs = broker.client.call("GET", f"/v1/jobs/{array}")["jobs"]
    edges = sorted([(job["started_ms"], 1) for job in jobs] + [(job["finished_ms"], -1) for job in jobs])
    running = peak = 0
    for _, step in edges:
        running += step
        peak = max(peak, running)
    assert peak <= 2


def test_key_gives_the_first_job(broker: LiveBroker) -> None:
    first = broker.submit("true", key="once")
    broker.wait(first["id"])
    again = broker.client.call("POST", "/v1/jobs", {"command": ["false"], "key": "once"})
    assert again["job"]["id"] == first["id"]
    assert again["existing"]


def test_hold_release_set_requeue(broker: LiveBroker) -> None:
    job = broker.submit("true", hold=True)
    assert broker.job(job["id"])["reason"]["code"] == "job_held"
    broker.cli("set", str(job["id"]), "priority=9", "time=1h")
    assert broker.job(job["id"])["priority"] == 9
    broker.cli("release", str(job["id"]))
    assert broker.wait(job["id"])["state"] == "completed"
    broker.cli("requeue", str(job["id"]))
    again = wait_until(lambda: (j := broker.job(job["id"]))["state"] == "completed" and j["attempt"] == 2 and j)
    assert again["exit_code"] == 0
    assert broker.kinds(job["id"]).count("requeued") == 1


def test_priority_goes_first(broker: LiveBroker) -> None:
    holder = broker.submit("sleep", "1000", gpus=8)
    broker.running(holder["id"])
    low = broker.submit("true", gpus=8)
    high = broker.submit("true", gpus=8, priority=5)
    broker.post(holder["id"], "cancel", {"now": True})
    assert broker.wait(high["id"])["started_ms"] <= broker.wait(low["id"])["started_ms"]


def test_run_is_transparent(broker: LiveBroker) -> None:
    data = os.urandom(300_000)
    done = broker.cli("run", "--gpus", "1", "--", "cat", stdin=data)
    assert done.stdout == data
    codes = {
        ("sh", "-c", "exit 9"): 9,
        ("sh", "-c", "kill -15 $$"): 143,
        ("/nonexistent",): 127,
    }
    for command, code in codes.items():
        assert broker.cli("run", "--", *command, check=False).returncode == code
    assert broker.cli("run", "-t", "1s", "--grace", "0", "--", "sleep", "100", check=False).returncode == 124


def test_log_keeps_its_cap_and_both_ends(own_broker: LiveBroker) -> None:
    own_broker.cli("down")
    own_broker.up("--set", "log_bytes_max=100000")
    job = own_broker.submit("sh", "-c", "echo FIRST; seq 1 100000; echo LAST")
    own_broker.wait(job["id"])
    text = own_broker.stdout(job["id"])
    assert len(text) <= 100_000
    assert text.startswith("FIRST\n") and text.endswith("LAST\n") and "[log truncated]" in text


def test_slurm_script(broker: LiveBroker, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH -J slurmy --gres=gpu:a100:2 -n 3\n#SBATCH -A project --mem-per-cpu=100\n"
        f"#SBATCH -o {tmp_path}/out-%j-%x.txt\n\necho $SLURM_JOB_NAME $SLURM_GPUS_ON_NODE $SLURM_NTASKS $1\n"
        "#SBATCH --gpus=9\nsrun sh -c 'echo rank $SLURM_PROCID' | sort\n"
    )
    done = broker.cli("submit", "-q", str(script), "--flag")
    number = int(done.stdout)
    assert b"--account" in done.stderr
    script.write_text("exit 1")
    ended = broker.wait(number)
    assert (ended["state"], ended["request"]["memory_bytes"]) == ("completed", 300 << 20)
    text = (tmp_path / f"out-{number}-slurmy.txt").read_text()
    assert text == "slurmy 2 3 --flag\nrank 0\nrank 1\nrank 2\n"


def test_long_home_path(tmp_path: Path) -> None:
    live = LiveBroker(tmp_path / ("x" * 100) / ("y" * 100))
    live.up()
    try:
        assert live.cli("run", "--", "echo", "far").stdout == b"far\n"
    finally:
        live.stop()


def test_down_while_jobs_end_by_themselves(own_broker: LiveBroker) -> None:
    """A job that ends between the request and its step needs no stop, and keeps nobody from stopping the broker."""
    for _ in range(4):
        own_broker.submit("sleep", "0.03", gpus=1, array=list(range(24)))
        own_broker.cli("down", "--cancel-jobs")
        own_broker.up()
    assert own_broker.client.call("GET", "/v1/jobs")["jobs"] == []
