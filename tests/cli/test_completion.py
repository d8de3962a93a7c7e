"""Completion scripts: the shell itself accepts them and completes verbs and flags as the parsers have them."""

import json
import shutil
import subprocess

import pytest

from courtier.cli.completion import SHELLS, execute, verb_flags
from courtier.cli.failure import Failure, Parser
from courtier.cli.main import VERBS


def script(shell: str, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    from courtier.cli.completion import configure

    parser = Parser(prog="courtier completion")
    configure("completion", parser)
    assert execute("completion", parser, [shell, *more]) == 0
    return capsys.readouterr().out


def completed(text: str, *words: str) -> list[str]:
    """What bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in words)
    ask = f"{text}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n_courtier courtier '{words[-1]}'\n"
    done = subprocess.run(
        ["bash", "--norc", "-c", ask + 'printf "%s\\n" "${COMPREPLY[@]}"'], capture_output=True, check=True, text=True
    )
    assert not done.stderr
    return done.stdout.split()


def test_bash_completes_verbs_and_the_flags_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    text = script("bash", capsys)
    assert set(completed(text, "courtier", "")) == {*VERBS, "--help", "--version"}
    assert completed(text, "courtier", "subm") == ["submit"]
    for verb in VERBS:
        assert completed(text, "courtier", verb, "--") == [flag for flag in verb_flags(verb) if flag.startswith("--")]
    assert "--gpus" in completed(text, "courtier", "submit", "--gp")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_takes_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    assert all(verb in text for verb in VERBS)
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([program, "-n"], input=text.encode(), check=True, capture_output=True)


def test_the_script_as_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    plain = script("bash", capsys)
    document = json.loads(script("bash", capsys, "-o", "json"))
    assert (document["version"], document["shell"], document["script"]) == (1, "bash", plain.rstrip("\n"))
    with pytest.raises(Failure, match="-o yaml"):
        script("bash", capsys, "-o", "yaml")
