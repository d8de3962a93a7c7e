"""The house holds: arrows point down, rooms are small, docs are whole. Each rule is shown to be able to fail."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from courtier.cli.main import VERBS
from courtier.cli.reference import pages

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "courtier"
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
DRAWERS = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc", "core", "types"}


def lint_imports(folder: Path) -> subprocess.CompletedProcess[bytes]:
    program = Path(sys.executable).parent / "lint-imports"
    return subprocess.run(
        [program, "--no-cache"], cwd=folder, env={"PYTHONPATH": str(folder / "src")}, capture_output=True, check=False
    )


def house_of(folder: Path, planted: dict[str, str]) -> Path:
    """A copy of the house with some files more."""
    shutil.copytree(
        ROOT / "src" / "courtier", folder / "src" / "courtier", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / ".importlinter", folder)
    for name, text in planted.items():
        path = folder / "src" / "courtier" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def test_a_daemon_loads_no_arrays_and_no_compiler() -> None:
    """Placement over a fleet is for clusters and simulations: a box's broker stays small without it."""
    modules = "courtier.daemon.main, courtier.daemon.backend, courtier.daemon.broker, courtier.api.server"
    code = f"import sys, {modules}; print(sorted({{'numpy', 'numba', 'pynvml'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_arrows_point_down() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout.decode()


@pytest.mark.parametrize(
    "planted",
    [
        {"domain/upward.py": "import courtier.engine.loop\n"},
        {"scheduler/clock.py": "import time\n"},
        {"drawer/__init__.py": ""},
        {"sim/real.py": "import courtier.adapters.sqlite\n"},
    ],
    ids=["upward", "clock-in-the-core", "folder-without-a-floor", "sim-meets-an-adapter"],
)
def test_a_broken_rule_is_caught(tmp_path: Path, planted: dict[str, str]) -> None:
    assert lint_imports(house_of(tmp_path, planted)).returncode != 0


def faults_of(name: str, text: str) -> list[str]:
    """What is too large, unnamed or unsaid in one module."""
    found = []
    if text.count("\n") >= MODULE_LINES_MAX:
        found.append(f"{name}: {text.count(chr(10))} lines")
    if Path(name).stem in DRAWERS:
        found.append(f"{name}: a drawer by its name")
    tree = ast.parse(text)
    if text.strip() and not ast.get_docstring(tree):
        found.append(f"{name}: says not what it is")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length >= FUNCTION_LINES_MAX:
                found.append(f"{name}:{node.lineno} {node.name}: {length} lines")
    return found


def test_rooms_are_small_and_say_what_they_are() -> None:
    found = [fault for path in SOURCE.rglob("*.py") for fault in faults_of(str(path), path.read_text())]
    assert not found


def test_a_large_room_is_caught() -> None:
    long_function = "def f():\n" + "    pass\n" * FUNCTION_LINES_MAX
    text = long_function + "\n" * MODULE_LINES_MAX
    assert len(faults_of("utils.py", text)) == 4


def test_reference_is_what_the_code_says() -> None:
    for name, text in pages().items():
        assert (ROOT / "docs" / "reference" / name).read_text() == text, f"{name}: make reference"


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help_with_an_example(verb: str) -> None:
    section = pages()["verbs.md"].split(f"## {verb}\n")[1].split("\n## ")[0]
    assert "courtier " in section
    assert ("`-o`" in section or verb in ("run", "shell", "attach", "completion")) and "`-h, --help`" in section


def test_no_tracked_file_names_this_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True).stdout.decode().split()
    pattern = re.compile(r"(^|[^\w.])/(work|farm)/[a-z.]|/root/\.|bash_jobs\.|index-url|://[^ ]*/simple\b")
    named = [
        name
        for name in listed
        if (ROOT / name).is_file() and name != "tests/house/test_house.py"
        if pattern.search((ROOT / name).read_text(errors="replace"))
    ]
    assert not named
