"""Job scripts and flags, as far as the body of a submit: no broker."""

import argparse
import base64
from typing import Any

import pytest

from courtier.cli.body import environment, submit_body
from courtier.cli.failure import Failure, Parser
from courtier.cli.flags import add_job_flags
from courtier.cli.script import directives, merge, script_flags
from courtier.cli.submit import add_local_flags, command_words

SCRIPT = b"""#!/bin/bash
#SBATCH --job-name=train --gres=gpu:a100:2
#SBATCH -n 2 -c 3 --mem-per-cpu=1G   # a comment
#SBATCH -t 1-12 -p long -o out-%j.txt -q urgent
#courtier --gpu-mem 18G --retries 2 --signal B:USR1@300

echo hello
#SBATCH --gpus=9
"""


def body_of(words: list[str], script: bytes | None = None) -> dict[str, Any]:
    parser = Parser(prog="courtier submit", allow_abbrev=False)
    add_job_flags(parser)
    add_local_flags(parser)
    arguments = parser.parse_args(words)
    if script is not None:
        arguments = merge(arguments, script_flags(script)[0])
    return submit_body(arguments, now_ms=0, directory=b"/here")


def test_a_script_s_head_is_flags() -> None:
    body = body_of([], SCRIPT)
    directory = body.pop("directory_base64")
    assert base64.b64decode(directory) == b"/here"
    assert body == {
        "name": "train",
        "queue": "long",
        "stdout": "out-%j.txt",
        "retries": 2,
        "gpus": 2,
        "gpu_model": "a100",
        "gpu_memory_bytes": 18 << 30,
        "cpus": 6,
        "ntasks": 2,
        "memory_bytes": 6 << 30,
        "time_limit_ms": 36 * 3_600_000,
        "signal_number": 10,
        "signal_leader_only": True,
        "signal_before_ms": 300_000,
    }


def test_the_command_line_wins() -> None:
    assert body_of(["--time", "5m", "-J", "other"], SCRIPT)["time_limit_ms"] == 300_000
    assert body_of(["-J", "other"], SCRIPT)["name"] == "other"


def test_directives_end_at_the_first_line_that_is_none() -> None:
    assert "--gpus=9" not in directives(SCRIPT)


def test_what_is_not_understood_is_named() -> None:
    _, ignored = script_flags(b"#SBATCH -A project --wckey=x --brand-new=1\n")
    assert ignored == ["--account", "--wckey", "--brand-new=1"]


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        (["true"], [b"true"]),
        (["echo hi | wc"], [b"/bin/sh", b"-c", b"echo hi | wc"]),
        (["echo", "a b"], [b"echo", b"a b"]),
        (["\udcff"], [b"\xff"]),
    ],
)
def test_command_words(words: list[str], argv: list[bytes]) -> None:
    assert command_words(words, shell=False) == argv


def test_secrets_stay_here_unless_listed() -> None:
    own = [(b"HF_TOKEN", b"1"), (b"AWS_SECRET_ACCESS_KEY", b"2"), (b"TOKENIZERS_PARALLELISM", b"3"), (b"PATH", b"4")]
    arguments = argparse.Namespace(keep_secret=["HF_TOKEN"], export=None, env=["A=5", "PATH"], env_file=None)
    pairs, left_out = environment(arguments, own)
    names = [base64.b64decode(name) for name, _ in pairs]
    assert names == [b"A", b"HF_TOKEN", b"PATH", b"TOKENIZERS_PARALLELISM"]
    assert left_out == [b"AWS_SECRET_ACCESS_KEY"]


@pytest.mark.parametrize("words", [["--gpus", "x y"], ["--nodes", "2"], ["--label", "x"], ["--signal", "?"]])
def test_mistakes_are_failures(words: list[str]) -> None:
    with pytest.raises(Failure) as failure:
        body_of(words)
    assert failure.value.error["exit_code"] == 2
