"""The systemd unit: what it must say so that a restart harms no job, and what a machine without systemd is told."""

import configparser
import os
import shlex
from pathlib import Path

import pytest

from conftest import LiveBroker
from courtier.daemon.service import SYSTEMD_MARK, unit_text


def test_a_restart_of_the_service_kills_no_supervisor() -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read_string(unit_text(Path("/var/lib/courtier"), None, None, {"sweep_ms": "100"}))
    service = parser["Service"]
    assert service["KillMode"] == "process"
    assert service["Delegate"] == "yes"
    assert service["Restart"] == "on-failure"
    assert service["Environment"] == "COURTIER_HOME=/var/lib/courtier"
    assert shlex.split(service["ExecStart"])[-3:] == ["up", "--set", "sweep_ms=100"]
    assert parser["Install"]["WantedBy"] == "multi-user.target"


def test_percent_and_dollar_are_not_systemds() -> None:
    text = unit_text(Path("/srv/a%b"), None, None, {"admin_group": "$gpu%"})
    assert "COURTIER_HOME=/srv/a%%b" in text
    assert "admin_group=$$gpu%%" in text


@pytest.mark.skipif(SYSTEMD_MARK.is_dir(), reason="systemd runs this machine: the test would install a service")
def test_without_systemd_there_is_a_clear_note(tmp_path: Path) -> None:
    live = LiveBroker(tmp_path / "state")
    done = live.cli("up", "--install-service", check=False)
    assert done.returncode == (1 if os.geteuid() == 0 else 4)
    assert b"systemd" in done.stderr or b"root" in done.stderr
    assert not Path("/etc/systemd/system/courtier.service").exists()
