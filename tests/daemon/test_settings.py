"""Settings: defaults, then the file, then the command line; a mistake is refused by name. And the token."""

import os
from dataclasses import asdict
from pathlib import Path

import pytest

from courtier.daemon.settings import SETTINGS, WORD_SETTINGS, SettingRefused, Settings, load_settings
from courtier.daemon.token import api_token


def test_every_setting_is_a_field_with_its_default_and_its_why() -> None:
    every = {**SETTINGS, **WORD_SETTINGS}
    assert asdict(Settings()) == {name: default for name, (default, _) in every.items()}
    assert all(why for _, why in every.values())


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("sweep_ms = 7\ntelemetry_ms = 8\n")
    found = load_settings(tmp_path, {"sweep_ms": "9"})
    assert (found.sweep_ms, found.telemetry_ms, found.log_bytes_max) == (9, 8, SETTINGS["log_bytes_max"][0])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sweep = 1", "no setting sweep: .*sweep_ms"),
        ("sweep_ms = 'soon'", "sweep_ms takes an integer, not 'soon'"),
        ("sweep_ms = 1.5", "sweep_ms takes an integer"),
        ("sweep_ms = -1", "sweep_ms can not be negative"),
        ("sweep_ms = [", "not valid TOML"),
    ],
)
def test_a_mistake_is_refused_with_its_name(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "settings.toml").write_text(text)
    with pytest.raises(SettingRefused, match=named):
        load_settings(tmp_path, {})


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingRefused):
        load_settings(tmp_path, {})


def test_a_token_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        token = api_token(tmp_path)
    finally:
        os.umask(mask)
    assert len(token) >= 40 and token == api_token(tmp_path)
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    (tmp_path / "other").mkdir()
    assert api_token(tmp_path / "other") != token
