"""`courtier sim openb` on a trace made here: fields, decision file, seeds, and files that are not a trace."""

import csv
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("openb")
    rng = random.Random(1)
    nodes = ["sn,cpu_milli,memory_mib,gpu,model"]
    nodes += [f"n{i:03},{'96000,262144,8,G2' if i % 2 else '16000,262144,2,T4'}" for i in range(120)]
    (path / "openb_node_list_gpu_node.csv").write_text("\n".join(nodes) + "\n")
    pods = ["name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"]
    for i in range(200):
        gpus, milli = rng.choice([(0, 0), (1, 1000), (1, 470), (1, 810), (2, 1000)])
        pods.append(f"p{i:03},{rng.choice([3152, 11300])},4096,{gpus},{milli},{rng.choice(['', '', 'T4', 'G2|T4'])}")
    (path / "openb_pod_list_small.csv").write_text("\n".join(pods) + "\n")
    return path


def sim(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "courtier.cli.main", "sim", "openb", "--data", str(folder), "--trace", "small"]
    return subprocess.run([*command, *words], capture_output=True, check=False, timeout=120)


def found(folder: Path, *words: str) -> dict[str, Any]:
    done = sim(folder, *words, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["simulation"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("mix", ["known", "learned"])
def test_decisions_are_the_same_by_both_engines_and_every_time(folder: Path, tmp_path: Path, mix: str) -> None:
    texts = []
    for engine in ("fast", "numpy", "numpy"):
        out = tmp_path / f"{engine}.csv"
        result = found(folder, "--seed", "7", "--engine", engine, "--mix", mix, "--decisions", str(out))
        texts.append(out.read_text())
        rows = list(csv.DictReader(out.read_text().splitlines()))
        assert [int(row["order"]) for row in rows] == list(range(len(rows)))
        assert result["placed"] == sum(row["node"] != "-1" for row in rows)
        assert result["placed"] + result["refused"] == len(rows)
        assert 0 < result["allocation_percent_at_130"] <= 100
        assert all(bool(row["gpus"]) <= (row["node"] != "-1") for row in rows)
    assert texts[0] == texts[1] == texts[2]
    other = tmp_path / "other.csv"
    found(folder, "--seed", "8", "--decisions", str(other))
    assert texts[0] != other.read_text()


def test_a_policy_from_a_file(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"name": "mine", "why": "a try", "weights_milli": {"packing": 1000}}))
    assert found(folder, "--policy", str(path), "--engine", "numpy")["policy"] == "mine"
    path.write_text('{"weights_milli": {"luck": 1}}')
    refused = sim(folder, "--policy", str(path))
    assert (refused.returncode, b"no scorer luck" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--trace", "nothing"], b"openb_pod_list_nothing.csv"),
        (["--policy", "best"], b"no policy best"),
        (["--seed", "x"], b"--seed"),
    ],
)
def test_what_is_not_there_is_said(folder: Path, words: list[str], text: bytes) -> None:
    refused = sim(folder, *words)
    assert refused.returncode == 2
    assert text in refused.stderr


def test_garbage_is_no_trace(folder: Path, tmp_path: Path) -> None:
    for name in ("openb_node_list_gpu_node.csv", "openb_pod_list_small.csv"):
        (tmp_path / name).write_bytes(
            (folder / name).read_bytes().replace(b"4096", b"many").replace(b"262144", b"\xff")
        )
    assert sim(tmp_path).returncode == 2


def test_policies_are_shown_with_their_reasons() -> None:
    command = [sys.executable, "-m", "courtier.cli.main", "policy"]
    shown = json.loads(
        subprocess.run([*command, "show", "courtier", "-o", "json"], capture_output=True, check=True).stdout
    )
    assert {scorer["scorer"] for scorer in shown["policy"]["scorers"]} >= {"fragmentation", "stranding", "price"}
    assert all(scorer["why"] for scorer in shown["policy"]["scorers"])
    listed = json.loads(subprocess.run([*command, "list", "-o", "json"], capture_output=True, check=True).stdout)
    assert {policy["name"] for policy in listed["policies"]} >= {"courtier", "fgd", "bestfit", "random"}
    assert subprocess.run([*command, "show", "nobody"], capture_output=True, check=False).returncode == 2
