"""On a machine with a GPU: what Courtier says is what the driver says, and the fence holds. Changes no setting.

`make test-gpu`; elsewhere each test skips with the reason.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import LiveBroker, wait_until
from courtier.adapters.nvml.discovery import DiscoveryStatus, discover

FOUND = discover(30)
pytestmark = [
    pytest.mark.skipif(FOUND.status is not DiscoveryStatus.OK or not FOUND.devices, reason=f"no GPU: {FOUND.text}"),
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="nvidia-smi is not installed"),
]
MIB = 1 << 20
# Takes memory of the first visible GPU through the driver's own library, and holds it.
HOLD = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def check(code):
    if code: sys.exit(f"CUDA error {code}")
check(cuda.cuInit(0))
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[1]) << 20)))
print("held", flush=True)
time.sleep(1000)
"""


def smi(*fields: str) -> list[list[str]]:
    query = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
        check=True,
        capture_output=True,
        text=True,
    )
    return [[word.strip() for word in line.split(",")] for line in query.stdout.splitlines()]


@pytest.fixture
def real(tmp_path: Path) -> Iterator[LiveBroker]:
    live = LiveBroker(tmp_path / "state", None)
    live.up()
    yield live
    live.stop()


def gpus(live: LiveBroker) -> list[dict[str, Any]]:
    return live.client.call("GET", "/v1/gpus")["gpus"]  # type: ignore[no-any-return]


def test_discovery_equals_nvidia_smi(real: LiveBroker) -> None:
    told = smi("index", "uuid", "memory.total", "name")
    seen = gpus(real)
    assert [(str(gpu["index"]), gpu["uuid"]) for gpu in seen] == [(row[0], row[1]) for row in told]
    for gpu, row in zip(seen, told, strict=True):
        assert abs(gpu["memory_bytes_total"] // MIB - int(row[2])) <= 1
        assert gpu["model"].split("-")[0].lower() in row[3].lower()
    wait_until(lambda: all(gpu["temperature_celsius"] for gpu in gpus(real)), "readings")


def test_the_fence_holds(real: LiveBroker) -> None:
    job = real.wait(real.submit("sh", "-c", "ls /dev/nvidia[0-9]* 2>/dev/null | wc -l; nvidia-smi -L", gpus=1)["id"])
    if job["allocation"]["isolation"] != "fence":
        pytest.skip(f"the level here is {job['allocation']['isolation']}: {job['allocation']['isolation_reason']}")
    count, *listed = real.stdout(job["id"]).splitlines()
    assert count == "1"
    assert [job["allocation"]["gpus"][0]["uuid"] in line for line in listed] == [True]
    none = real.wait(real.submit("sh", "-c", "ls /dev | grep -c nvidia")["id"])
    assert real.stdout(none["id"]).strip() == "0"


def test_memory_overuse_is_seen_within_two_seconds(real: LiveBroker, tmp_path: Path) -> None:
    program = tmp_path / "hold.py"
    program.write_text(HOLD)
    job = real.submit("python3", str(program), "2048", gpu_memory_bytes=1024 * MIB, grace_ms=0)["id"]
    ended = real.wait(job)
    if "CUDA error" in real.stdout(job) or ended["state"] == "failed":
        pytest.skip(f"CUDA does not run here: {real.client.raw('GET', f'/v1/jobs/{job}/logs', stream='stderr')!r}")
    assert (ended["state"], ended["reason"]["code"]) == ("out_of_memory", "gpu_memory_overuse")
    assert ended["finished_ms"] - ended["started_ms"] < 4000


def test_a_process_of_somebody_else_is_external(real: LiveBroker, tmp_path: Path) -> None:
    program = tmp_path / "hold.py"
    program.write_text(HOLD)
    with subprocess.Popen(["python3", str(program), "1024"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as other:
        assert other.stdout is not None
        if other.stdout.readline() != b"held\n":
            pytest.skip("CUDA does not run here")
        wait_until(
            lambda: any(p["pid"] == other.pid for gpu in gpus(real) for p in gpu["external"]), "the other's memory"
        )
        other.kill()
