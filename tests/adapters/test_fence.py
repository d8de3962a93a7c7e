"""A fence keeps foreign nodes out, lets the job be exactly what it was, and goes when its supervisor goes.

The probe runs on stand-in nodes; it must reject fences that were made weak on purpose.
"""

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import wait_until
from courtier.adapters.process import fence_probe
from courtier.adapters.process.credentials import become
from courtier.adapters.process.fence import FenceSpec, fence_argv, find_bwrap, gpu_nodes
from courtier.adapters.process.fence_probe import OWN, FenceVerdict, probe_fence
from courtier.adapters.process.privileges import clear_capabilities
from courtier.engine.ports import Owner

HELPER = str(Path(__file__).with_name("fenced_job.py"))
PLAIN = {"PATH": "/usr/bin:/bin"}
ROOT = os.geteuid() == 0
VERDICT = probe_fence()
pytestmark = pytest.mark.skipif(find_bwrap() is None, reason="bubblewrap is not installed")
needs_fence = pytest.mark.skipif(VERDICT.level != "fence", reason=f"no fence here: {VERDICT.reason}")
needs_root = pytest.mark.skipif(not ROOT, reason="needs root")


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder that every user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="courtier-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def start(room: Path, *argv: str, environment: Any = None, **fields: Any) -> subprocess.Popen[bytes]:
    job = {
        "argv": argv,
        "environment": list((PLAIN if environment is None else environment).items()),
        "directory": "/",
        "user": None,
        "nodes": [],
        "terminal": False,
        "term_when": None,
        "stdout": str(room / "out"),
        **fields,
    }
    process = subprocess.Popen([sys.executable, HELPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(json.dumps(job).encode())
    process.stdin.close()
    process.stdin = None
    return process


def run(room: Path, *argv: str, **fields: Any) -> dict[str, Any]:
    output, _ = start(room, *argv, **fields).communicate(timeout=30)
    result: dict[str, Any] = json.loads(output)
    return result


def replaced(argv: list[str], old: list[str], new: list[str]) -> list[str]:
    places = [at for at in range(len(argv)) if argv[at : at + len(old)] == old]
    assert places, f"{old} is no part of the fence any more"
    return argv[: places[0]] + new + argv[places[0] + len(old) :]


# The probe ----------------------------------------------------------------------------------------


@needs_root
def test_the_fence_holds_here_as_root_and_as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = f"courtier-probe-test-{os.getpid()}-"
    monkeypatch.setattr(fence_probe, "STAND_IN_PREFIX", prefix)
    started = time.monotonic()
    assert probe_fence() == FenceVerdict("fence", None)
    assert time.monotonic() - started < 1.5
    assert not [*Path("/dev").glob(f"{prefix}*"), *Path(tempfile.gettempdir()).glob(f"{prefix}*")]


WEAK: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "a foreign node bound in": (
        lambda argv: replaced(argv, ["--chdir"], ["--dev-bind", "/dev/full", "/dev/nvidia97", "--chdir"]),
        "/dev/nvidia97 is there",
    ),
    "the pid namespace shared": (
        lambda argv: replaced(replaced(argv, ["--unshare-pid"], []), ["--proc", "/proc"], ["--bind", "/proc", "/proc"]),
        "processes outside are visible",
    ),
    "the machine's /proc": (
        lambda argv: replaced(argv, ["--proc", "/proc"], ["--bind", "/proc", "/proc"]),
        "processes outside are visible",
    ),
    "devices allowed everywhere": (
        lambda argv: replaced(argv, ["--bind", "/", "/"], ["--dev-bind", "/", "/"]),
        "a copy of a foreign node opens",
    ),
    "/sys writable": (lambda argv: replaced(argv, ["--ro-bind", "/sys", "/sys"], []), "/sys"),
    "/proc/sys writable": (
        lambda argv: replaced(argv, ["--ro-bind", "/proc/sys", "/proc/sys"], []),
        "/proc/sys",
    ),
    "no node of its own": (
        lambda argv: replaced(argv, ["--dev-bind", "/dev/zero", OWN], []),
        f"its own node {OWN} does not open",
    ),
    "nothing at all": (
        lambda argv: [argv[0], "--dev-bind", "/", "/", *argv[argv.index("--chdir") :]],
        "is there",
    ),
}


@needs_root
@pytest.mark.parametrize("name", WEAK)
def test_a_weak_fence_is_rejected_with_its_hole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weaken, hole = WEAK[name]
    monkeypatch.setattr(fence_probe, "HOLES_NAMED_MAX", 1000)
    verdict = probe_fence(argv_of=lambda spec: weaken(fence_argv(spec)))
    assert verdict.level == "env"
    assert verdict.reason is not None
    assert hole in verdict.reason


@needs_root
def test_the_whole_of_dev_is_rejected() -> None:
    def whole(spec: FenceSpec) -> list[str]:
        argv = replaced(fence_argv(spec), ["--dev", "/dev"], ["--dev-bind", "/dev", "/dev"])
        return replaced(argv, ["--dev-bind", "/dev/zero", OWN], [])

    verdict = probe_fence(argv_of=whole)
    assert verdict.level == "env"
    assert "is there" in (verdict.reason or "")


def _keep_all(_user: Owner | None) -> None:
    return


def _become_only(user: Owner | None) -> None:
    if user is not None:
        become(user)


def _without_no_new_privileges(user: Owner | None) -> None:
    _become_only(user)
    clear_capabilities()


@needs_root
@pytest.mark.parametrize(
    ("confine", "hole"),
    [
        (_keep_all, "mknod of a foreign device works"),
        (_become_only, "as root: capabilities are kept"),
        (_without_no_new_privileges, "as root: after an exec capabilities are kept"),
        (_without_no_new_privileges, "as a user: new privileges are possible"),
    ],
)
def test_rights_that_are_kept_are_found(
    confine: Callable[[Owner | None], None], hole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence_probe, "HOLES_NAMED_MAX", 1000)
    verdict = probe_fence(confine=confine)
    assert verdict.level == "env"
    assert hole in (verdict.reason or "")


@needs_root
def test_a_second_procfs_is_no_way_out(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = room / "proc"
    point.mkdir()
    subprocess.run(["mount", "-t", "proc", "proc", point], check=True)
    try:
        assert probe_fence() == FenceVerdict("fence", None)
        uncovered = lambda spec: replaced(fence_argv(spec), ["--tmpfs", str(point)], [])  # noqa: E731
        monkeypatch.setattr(fence_probe, "HOLES_NAMED_MAX", 1000)
        verdict = probe_fence(argv_of=uncovered)
        assert f"visible in {point}" in (verdict.reason or "")
    finally:
        subprocess.run(["umount", point], check=True)


@pytest.mark.parametrize("command", [["/bin/sleep", "100"], ["/bin/false"], ["/nonexistent"]])
def test_a_probe_never_hangs_and_says_why(command: list[str]) -> None:
    started = time.monotonic()
    verdict = probe_fence(argv_of=lambda spec: [*fence_argv(spec)[:-1], *command])
    assert verdict.level == "env"
    assert (verdict.reason or "").startswith("bubblewrap: ")
    assert time.monotonic() - started < 2.5


def test_no_bubblewrap_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence_probe, "find_bwrap", lambda: None)
    assert probe_fence() == FenceVerdict("env", "bubblewrap (bwrap) is not installed")


# A job in a fence -----------------------------------------------------------------------------------


def test_nodes_of_a_job() -> None:
    assert gpu_nodes([]) == ()
    paths = {node.path for node in gpu_nodes([2], [30, 31])}
    assert {"/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-caps/nvidia-cap30"} <= paths
    assert not {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap1"} & paths
    assert not any(node.required for node in gpu_nodes([0], simulated=True))


@needs_fence
def test_it_has_its_own_node_and_no_other(room: Path) -> None:
    nodes = [("/dev/zero", "/dev/nvidia3")]
    assert run(room, "sh", "-c", "ls /dev; head -c 2 /dev/nvidia3 | od -An -tx1", nodes=nodes)["code"] == 0
    words = (room / "out").read_text().split()
    assert [word for word in words if word.startswith("nvidia")] == ["nvidia3"]
    assert words[-2:] == ["00", "00"]


@needs_root
@needs_fence
def test_a_real_looking_foreign_node_is_absent(room: Path) -> None:
    node = Path("/dev/nvidia95")
    os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
    try:
        assert run(room, "ls", str(node))["code"] == 2
    finally:
        node.unlink()


@needs_fence
@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", -15), ("kill -KILL $$", -9)]
)
def test_how_it_ended_is_exact(room: Path, script: str, code: int) -> None:
    result = run(room, "sh", "-c", script)
    assert (result["code"], result["failure"], result["left"]) == (code, None, False)
    # Monitor and init; nothing stays behind as a zombie.
    assert result["reaped"] == 2


@needs_fence
def test_not_found_and_not_executable(room: Path) -> None:
    missing = run(room, "no-such-command")
    assert (missing["code"], missing["failure"]["exit_code"]) == (127, 127)
    assert "no-such-command" in missing["failure"]["error"]
    (room / "plain").write_text("text")
    blocked = run(room, str(room / "plain"))
    assert (blocked["code"], blocked["failure"]["exit_code"]) == (126, 126)


@needs_fence
def test_a_fence_that_cannot_be_is_a_refusal(room: Path) -> None:
    result = run(room, "true", nodes=[("/dev/no-such-node", "/dev/nvidia0")])
    assert "no-such-node" in result["refused"]
    assert not (room / "out").exists()


@needs_fence
def test_its_environment_is_byte_for_byte(room: Path) -> None:
    environment = {
        **PLAIN,
        "BASH_FUNC_x%%": "() { :; }",
        "n\xe4me\xff": "v\x80\xfe\nline",
        "EMPTY": "",
        "PWD": "/nowhere",
        "A=B"[:1]: "=x=",
    }
    run(room, "cat", "/proc/self/environ", environment=environment)
    expected = [f"{name}={value}".encode("latin-1") for name, value in environment.items()]
    assert (room / "out").read_bytes().split(b"\0")[:-1] == expected


@needs_fence
def test_a_large_environment_of_which_nothing_shows(room: Path) -> None:
    environment = {**PLAIN, **{f"VARIABLE_{number}": "s" * 540 for number in range(2000)}}
    run(
        room,
        "sh",
        "-c",
        "cat /proc/self/environ; cat /proc/*/cmdline >> $0",
        str(room / "argv"),
        environment=environment,
    )
    assert len((room / "out").read_bytes()) > 1 << 20
    assert (room / "out").read_bytes().count(b"VARIABLE_") == 2000
    shown = (room / "argv").read_bytes()
    assert b"bwrap" in shown
    assert b"VARIABLE_" not in shown


@needs_fence
def test_a_preload_of_the_job_acts_in_the_job_only(room: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (room / "seen").touch(mode=0o666)
    source = room / "marker.c"
    source.write_text(
        "#include <errno.h>\n#include <stdio.h>\n"
        f'__attribute__((constructor)) static void mark(void) {{ FILE *f = fopen("{room}/seen", "a");\n'
        ' if (f) { fprintf(f, "%s\\n", program_invocation_short_name); fclose(f); } }\n'
    )
    library = room / "marker.so"
    subprocess.run([compiler, "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", library, source], check=True)
    assert run(room, "true", environment={**PLAIN, "LD_PRELOAD": str(library)})["code"] == 0
    assert (room / "seen").read_text().split() == ["true"]


@needs_fence
def test_term_reaches_the_job_which_ends_in_its_own_way(room: Path) -> None:
    script = f"trap 'sleep 0.1; exit 3' TERM; touch {room}/ready; while :; do sleep 0.02; done"
    assert run(room, "sh", "-c", script, term_when=str(room / "ready"))["code"] == 3


@needs_fence
def test_what_it_leaves_behind_is_seen_and_waited_for(room: Path) -> None:
    script = (
        f"setsid sh -c 'while [ ! -e {room}/go ]; do sleep 0.01; done' >/dev/null 2>&1 & (sleep 0.3; touch {room}/go) &"
    )
    result = run(room, "sh", "-c", script)
    assert (result["code"], result["left"]) == (0, True)


def _running(word: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if word.encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found


@needs_fence
def test_the_whole_tree_goes_with_its_supervisor(room: Path) -> None:
    word = f"{100000 + os.getpid()}"
    process = start(room, "sh", "-c", f"setsid sleep {word} & (setsid sleep {word} &) ; sleep {word}")
    wait_until(lambda: len(_running(word)) == 3, "the tree")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    wait_until(lambda: not _running(word), "the end of the tree")


@needs_fence
def test_a_terminal_is_the_jobs_own(room: Path) -> None:
    result = run(room, "sh", "-c", "test -t 0 && echo over-tty > /dev/tty; tty; ps -o pid= -p $$", terminal=True)
    assert result["code"] == 0
    words = (room / "out").read_text().split()
    assert words[:2] == ["over-tty", "/dev/console"]


@needs_root
@needs_fence
def test_as_another_user_nothing_of_roots_is_touched(room: Path) -> None:
    secret = room / "secret"
    secret.mkdir(mode=0o700)
    result = run(room, "true", directory=str(secret), user=[65534, 65534])
    assert result["failure"]["exit_code"] == 126
    script = "id -u; id -G; grep -E 'Cap(Prm|Eff|Bnd)|NoNewPrivs' /proc/self/status; touch /dev/shm/mine && echo shm"
    assert run(room, "sh", "-c", script, user=[65534, 65534])["code"] == 0
    none = "0" * 16
    expected = f"65534 65534 CapPrm: {none} CapEff: {none} CapBnd: {none} NoNewPrivs: 1 shm"
    assert (room / "out").read_text().split() == expected.split()
