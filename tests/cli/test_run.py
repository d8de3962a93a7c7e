"""`run` joins a supervisor that is known before it listens."""

import pytest

from courtier.api.client import Client
from courtier.cli import run


def test_a_supervisor_that_does_not_listen_yet_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def attachment(directory: str, *, own: bool, terminal: bool) -> str:
        tries.append(directory)
        if len(tries) < 3:
            raise FileNotFoundError(directory)
        return "joined"

    monkeypatch.setattr(run, "_wait_directory", lambda *_, **__: "folder")
    monkeypatch.setattr(run, "Attachment", attachment)
    assert run._wait_attachment(Client(), 1, terminal=False) == "joined"  # type: ignore[comparison-overlap]
    assert len(tries) == 3


def test_a_job_that_ended_first_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_wait_directory", lambda *_, **__: None)
    assert run._wait_attachment(Client(), 1, terminal=False) is None
