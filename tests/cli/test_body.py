"""From flags to the body of a submit: Slurm's words mean what they mean there; a mistake names its flag."""

import argparse
import base64
import signal
from pathlib import Path
from typing import Any

import pytest

from courtier.cli.body import environment, signal_number, submit_body
from courtier.cli.failure import Failure, Parser
from courtier.cli.flags import add_job_flags
from courtier.cli.submit import add_local_flags

GIB = 1 << 30
DEFAULTS = {"directory_base64": base64.b64encode(b"/here").decode(), "cpus": 1}


def parsed(words: str) -> argparse.Namespace:
    parser = Parser(prog="courtier submit")
    add_job_flags(parser)
    add_local_flags(parser)
    return parser.parse_args(words.split())


def body(words: str) -> dict[str, Any]:
    found = submit_body(parsed(words), now_ms=5_000, directory=b"/here")
    return {name: value for name, value in found.items() if DEFAULTS.get(name) != value and value is not False}


GOLDEN: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("--gpus 2", {"gpus": 2}),
    ("--gpus a100:2", {"gpus": 2, "gpu_model": "a100"}),
    ("--gres gpu:a100:2", {"gpus": 2, "gpu_model": "a100"}),
    ("--gpus-per-task 2 --ntasks 3", {"gpus": 6, "cpus": 3, "ntasks": 3}),
    ("--gpu-mem 18G", {"gpu_memory_bytes": 18 * GIB}),
    ("--cpus 4 --ntasks 2", {"cpus": 8, "ntasks": 2}),
    ("--mem 4096", {"memory_bytes": 4 * GIB}),
    ("--mem 4G", {"memory_bytes": 4 * GIB}),
    ("--mem 0", {}),
    ("--mem-per-cpu 1G --cpus 3", {"memory_bytes": 3 * GIB, "cpus": 3}),
    ("--time 90", {"time_limit_ms": 5_400_000}),
    ("--time 1-2:03", {"time_limit_ms": ((24 + 2) * 60 + 3) * 60_000}),
    ("--grace 5", {"grace_ms": 5_000}),
    ("--begin now+2", {"begin_ms": 7_000}),
    ("--priority 5 --nice 2", {"priority": 3}),
    ("--nice 2", {"priority": -2}),
    ("--array 0-4:2%2", {"array": [0, 2, 4], "array_limit": 2}),
    ("--dependency afterok:1?afterany:2", {"dependencies": ["afterok:1", "afterany:2"]}),
    ("--signal B:USR1@60", {"signal_number": 10, "signal_leader_only": True, "signal_before_ms": 60_000}),
    ("--signal 12", {"signal_number": 12}),
    ("--sim-use 3G,40%", {"memory_bytes_simulated": 3 * GIB, "utilization_percent_simulated": 40}),
    ("--label a=b=c --label d=", {"labels": {"a": "b=c", "d": ""}}),
    ("--retry-on oom,failed --retries 2", {"retry_on": ["oom", "failed"], "retries": 2}),
    ("--chdir sub", {"directory_base64": base64.b64encode(b"/here/sub").decode()}),
    ("--chdir /abs", {"directory_base64": base64.b64encode(b"/abs").decode()}),
    ("--nodes 1", {}),
]


@pytest.mark.parametrize(("words", "expected"), GOLDEN, ids=lambda value: value if isinstance(value, str) else "")
def test_golden_bodies(words: str, expected: dict[str, Any]) -> None:
    assert body(words) == expected


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("--gpus=-1", "--gpus"),
        ("--gres license:2", "--gres"),
        ("--gpu-mem 18", "--gpu-mem"),
        ("--mem lots", "--mem"),
        ("--mem-per-cpu x", "--mem-per-cpu"),
        ("--time soon", "--time"),
        ("--grace unlimited", "--grace"),
        ("--begin yesterday", "--begin"),
        ("--array 3-1", "--array"),
        ("--signal @5", "--signal"),
        ("--signal NOPE", "--signal"),
        ("--label x", "--label"),
        ("--nodes 2", "--nodes"),
        ("--sim-use much", "--sim-use"),
    ],
)
def test_a_mistake_names_its_flag(words: str, flag: str) -> None:
    with pytest.raises(Failure) as raised:
        body(words)
    assert raised.value.error["exit_code"] == 2 and str(raised.value).startswith(flag)


@pytest.mark.parametrize(("text", "number"), [("USR1", 10), ("sigusr1", 10), ("10", 10), ("64", 64), ("KILL", 9)])
def test_signals_by_name_and_number(text: str, number: int) -> None:
    assert signal_number(text) == signal.Signals(number)


@pytest.mark.parametrize("text", ["0", "65", "-9", "", "SIG", "1.5", "²"])
def test_what_is_no_signal(text: str) -> None:
    with pytest.raises(ValueError, match="not a signal"):
        signal_number(text)


OWN = {
    b"HOME": b"/home/ada",
    b"A": b"1",
    b"\xff": b"\xfe",
    b"AWS_SECRET_ACCESS_KEY": b"s",
    b"HF_TOKEN": b"t",
    b"TOKENIZERS_PARALLELISM": b"false",
    b"DB_PASSWORD": b"p",
    b"PATH": b"/bin",
}
SECRETS = {b"AWS_SECRET_ACCESS_KEY", b"HF_TOKEN", b"DB_PASSWORD"}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", OWN.keys() - SECRETS),
        ("--keep-secret HF_TOKEN", OWN.keys() - SECRETS | {b"HF_TOKEN"}),
        ("--export NONE", set()),
        ("--export NONE,A,NEW=1", {b"A", b"NEW"}),
        ("--export A,MISSING", {b"A"}),
        ("--export ALL,NEW=1", OWN.keys() - SECRETS | {b"NEW"}),
        ("--env HF_TOKEN", OWN.keys() - SECRETS | {b"HF_TOKEN"}),
    ],
)
def test_which_variables_go_along(words: str, names: set[bytes]) -> None:
    pairs, left_out = environment(parsed(words), OWN.items())
    found = {base64.b64decode(name): base64.b64decode(value) for name, value in pairs}
    assert found.keys() == names
    assert all(found[name] == OWN[name] for name in found.keys() & OWN.keys())
    if not words:
        assert set(left_out) == SECRETS


def test_flags_win_over_a_file_and_a_file_over_what_is_inherited(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_text("# comment\n\nA=file\nB=file\nHOME\n")
    pairs, _ = environment(parsed(f"--export NONE --env-file {path} -e B=flag"), OWN.items())
    found = {base64.b64decode(name): base64.b64decode(value) for name, value in pairs}
    assert found == {b"A": b"file", b"B": b"flag", b"HOME": b"/home/ada"}
    with pytest.raises(Failure, match="--env-file"):
        environment(parsed("--env-file /nowhere/at/all"), OWN.items())
