"""One broker for the real GPUs of a machine."""

import os
import subprocess
import sys

import pytest

from courtier.daemon import gpulock
from courtier.daemon.gpulock import answer_askers, claim_gpus
from courtier.engine.ports import PortError


def test_the_second_is_told_who_has_them() -> None:
    name = f"\0courtier-test/{os.getpid()}"
    code = (
        "import sys; from courtier.daemon.gpulock import claim_gpus; "
        f"claim = claim_gpus({name!r}); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(PortError, match=f"pid {holder.pid} of "):
            claim_gpus(name)
        holder.kill()
    with claim_gpus(name), pytest.raises(PortError):
        claim_gpus(name)


def test_a_holder_that_answers_nobody_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped broker's queue fills up; who asks is still refused, and soon."""
    monkeypatch.setattr(gpulock, "ASK_SECONDS_MAX", 0.05)
    name = f"\0courtier-test-full/{os.getpid()}"
    with claim_gpus(name) as claim:
        for _ in range(12):
            with pytest.raises(PortError, match="belong to another broker"):
                claim_gpus(name)
        answer_askers(claim)
        with pytest.raises(PortError, match=f"pid {os.getpid()} of "):
            claim_gpus(name)
