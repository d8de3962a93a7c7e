"""Who a process is: a pid alone is nobody. Real processes, one with a name made to mislead."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import wait_until
from courtier.adapters.process.identity import boot_id, identify, is_alive, open_pidfd, signal_process, stat_fields
from courtier.adapters.process.tree import MARK_NAME, descendants, marked

BOOT = boot_id()


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose name has spaces, parentheses and a number in it."""
    program = tmp_path / "a) R 1 (b"
    shutil.copy(shutil.which("sleep") or "", program)
    process = subprocess.Popen([program, "600"], env={MARK_NAME.decode(): "the-mark"})
    wait_until(lambda: b"R 1" in Path(f"/proc/{process.pid}/cmdline").read_bytes(), "the program")
    yield process
    process.kill()
    process.wait()


def test_a_process_is_known_whatever_its_name(sleeper: subprocess.Popen[bytes]) -> None:
    fields = stat_fields(sleeper.pid)
    assert fields is not None and int(fields[1]) == os.getpid()
    identity = identify(sleeper.pid, BOOT)
    assert identity is not None and identity.pid == sleeper.pid and identity.start_ticks > 0
    assert is_alive(identity, BOOT)
    assert identity in descendants(os.getpid(), BOOT)
    assert marked(b"the-mark", BOOT) == [identity]
    assert marked(b"the-mar", BOOT) == []


def test_a_stranger_with_the_same_pid_is_never_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identify(sleeper.pid, BOOT)
    assert identity is not None
    for other in (replace(identity, start_ticks=identity.start_ticks - 1), replace(identity, boot_id="another")):
        assert not is_alive(other, BOOT)
        assert open_pidfd(other, BOOT) is None
        assert not signal_process(other, signal.SIGKILL, BOOT)
    assert sleeper.poll() is None
    assert signal_process(identity, signal.SIGTERM, BOOT)
    assert sleeper.wait(10) == -signal.SIGTERM
    assert not signal_process(identity, signal.SIGTERM, BOOT)


def test_a_zombie_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identify(sleeper.pid, BOOT)
    assert identity is not None
    os.kill(sleeper.pid, signal.SIGKILL)
    wait_until(lambda: (stat_fields(sleeper.pid) or [b"?"])[0] == b"Z", "the zombie")
    assert identify(sleeper.pid, BOOT) is None
    assert not is_alive(identity, BOOT)
    assert identity not in descendants(os.getpid(), BOOT)
