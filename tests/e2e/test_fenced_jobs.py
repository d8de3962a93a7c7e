"""Jobs in their fences, on a simulated box whose GPUs stand for device nodes: what each can reach, and what not."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import LiveBroker, carrying, wait_until
from courtier.adapters.process.fence_probe import probe_fence

VERDICT = probe_fence()
pytestmark = [
    pytest.mark.skipif(VERDICT.level != "fence", reason=f"no fence here: {VERDICT.reason}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="making stand-in device nodes needs root"),
    pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has real device nodes"),
]
# The harmless device that stands in: its twin is /dev/null.
STAND_IN = os.makedev(1, 3)
GPUS = 3
NODES = [*(f"/dev/nvidia{n}" for n in range(GPUS)), "/dev/nvidiactl", "/dev/nvidia-uvm"]


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[str]]:
    made = []
    try:
        for path in NODES:
            os.mknod(path, 0o666 | stat.S_IFCHR, STAND_IN)
            os.chmod(path, 0o666)
            made.append(path)
        yield made
    finally:
        for path in made:
            os.unlink(path)


@pytest.fixture(scope="module")
def fenced(nodes: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    live = LiveBroker(tmp_path_factory.mktemp("home") / "state", f"{GPUS}xL4")
    live.up()
    yield live
    live.stop()


def run(live: LiveBroker, script: str, **fields: Any) -> tuple[dict[str, Any], str]:
    ended = live.wait(live.submit("sh", "-c", script, **fields)["id"])
    return ended, live.stdout(ended["id"])


SEEN = "ls /dev | grep nvidia | sort | tr '\\n' ' '"


def test_a_job_sees_its_own_devices_and_no_others(fenced: LiveBroker) -> None:
    ended, text = run(fenced, SEEN, gpus=1)
    index = ended["allocation"]["gpus"][0]["index"]
    assert (ended["allocation"]["isolation"], ended["allocation"]["isolation_reason"]) == ("fence", None)
    assert text.split() == sorted(["nvidia-uvm", f"nvidia{index}", "nvidiactl"])
    ended, text = run(fenced, SEEN, gpus=2)
    assert sum(name.removeprefix("nvidia").isdigit() for name in text.split()) == 2


def test_a_job_without_gpus_has_none(fenced: LiveBroker) -> None:
    assert run(fenced, SEEN)[1] == ""


def test_its_own_device_works_and_a_foreign_one_can_not_be_made(fenced: LiveBroker) -> None:
    holder = fenced.submit("sleep", "1000", gpus=2)["id"]
    taken = {gpu["index"] for gpu in fenced.running(holder)["allocation"]["gpus"]}
    (own,) = set(range(GPUS)) - taken
    foreign = min(taken)
    script = (
        f"echo x > /dev/nvidia{own} && echo own; "
        f"cat /dev/nvidia{foreign} 2>/dev/null && echo foreign; "
        f"mknod /tmp/made{os.getpid()} c 1 3 2>/dev/null && echo made; "
        f"umount /dev 2>/dev/null && echo unmounted; "
        f"ls /proc/1/root/dev/nvidia{foreign} 2>/dev/null && echo through; true"
    )
    assert run(fenced, script, gpus=1)[1] == "own\n"
    fenced.post(holder, "cancel", {"now": True})
    fenced.wait(holder)


def test_processes_of_others_are_not_there(fenced: LiveBroker) -> None:
    other = fenced.submit("sleep", "1000")["id"]
    pid = fenced.running(other)["pid"]
    assert run(fenced, f"test -e /proc/{pid} && echo there; ls /proc | grep -c '^[0-9]'")[1].strip() in list("23456789")
    fenced.post(other, "cancel", {"now": True})


def test_opting_out_is_told(fenced: LiveBroker) -> None:
    ended, text = run(fenced, SEEN, gpus=1, isolation="env")
    assert len(text.split()) == len(NODES)
    assert (ended["allocation"]["isolation"], ended["allocation"]["isolation_reason"]) == ("env", "asked for")


def test_signals_codes_and_leftovers_are_exact(fenced: LiveBroker, tmp_path: Path) -> None:
    assert run(fenced, "kill -11 $$")[0]["signal"] == 11
    assert run(fenced, "exit 9")[0]["exit_code"] == 9
    trapping = fenced.submit("sh", "-c", "trap 'exit 3' TERM; echo up; while :; do sleep 0.01; done")["id"]
    wait_until(lambda: fenced.stdout(trapping) == "up\n", "the trap")
    fenced.post(trapping, "cancel", {})
    ended = fenced.wait(trapping)
    assert (ended["state"], ended["exit_code"]) == ("cancelled", 3)
    stubborn = f"trap '' TERM; echo {tmp_path}; sleep 1000"
    left = fenced.submit("sh", "-c", f'setsid sh -c "{stubborn}" & exit 4', name=str(tmp_path), grace_ms=200)
    ended = fenced.wait(left["id"])
    assert (ended["state"], ended["exit_code"]) == ("failed", 4)
    assert not carrying(tmp_path)


def test_a_machine_without_bubblewrap_says_so(
    fenced: LiveBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from courtier.adapters.process import fence_probe

    monkeypatch.setattr(fence_probe, "find_bwrap", lambda: None)
    verdict = probe_fence()
    assert (verdict.level, verdict.reason) == ("env", "bubblewrap (bwrap) is not installed")
