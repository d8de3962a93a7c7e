"""One broker for the real GPUs of a machine."""

import os
import subprocess
import sys

import pytest

from courtier.daemon.gpulock import claim_gpus
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
