"""One broker of root's, two users who do not trust each other: what each may do, and ways across that all fail."""

import base64
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import LiveBroker, alive, wait_until
from courtier.adapters.process.attach import Attachment
from courtier.api.client import RequestRefused
from people import ALICE, MALLORY, Failed, as_user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a broker for several users is root's")
SECRET = "hunter2-very-secret"
PTRACE_ATTACH = 16


@pytest.fixture(scope="module")
def machine() -> Iterator[LiveBroker]:
    base = Path(tempfile.mkdtemp(prefix="courtier-test-"))
    base.chmod(0o755)
    live = LiveBroker(base / "state")
    live.up()
    try:
        yield live
    finally:
        live.stop()
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody may write to, as /tmp is."""
    folder = Path(tempfile.mkdtemp(prefix="courtier-test-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def submit_as(machine: LiveBroker, uid: int, *command: str, **fields: Any) -> dict[str, Any]:
    return as_user(uid, lambda: machine.submit(*command, **fields))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def hers(machine: LiveBroker) -> dict[str, Any]:
    """Alice's running job, with secrets in every place where one may be."""
    environment = [(base64.b64encode(b"WORD").decode(), base64.b64encode(SECRET.encode()).decode())]
    job = submit_as(
        machine,
        ALICE,
        "sh",
        "-c",
        f"echo {SECRET}; echo {SECRET} >&2; exec sleep 1000",
        gpus=1,
        environment_base64=environment,
        labels={"word": SECRET},
        comment=SECRET,
        key="alices",
        directory_base64=base64.b64encode(b"/tmp").decode(),
    )
    running = machine.running(job["id"])
    wait_until(lambda: SECRET in machine.stdout(job["id"]), "her output")
    return running


def test_a_job_runs_as_its_user(machine: LiveBroker) -> None:
    job = submit_as(machine, ALICE, "sh", "-c", "id -u; id -g; id -G; grep -E '^Cap(Eff|Prm|Amb)' /proc/self/status")
    assert machine.wait(job["id"])["state"] == "completed"
    uid, gid, groups, *capabilities = machine.stdout(job["id"]).splitlines()
    assert (uid, gid, groups) == (str(ALICE), str(ALICE), str(ALICE))
    assert [int(line.split()[1], 16) for line in capabilities] == [0, 0, 0]
    assert job["user"] == str(ALICE)


def test_root_stays_root(machine: LiveBroker) -> None:
    job = machine.submit("id", "-u")
    machine.wait(job["id"])
    assert machine.stdout(job["id"]) == "0\n"


def test_a_users_files_are_made_by_the_user(machine: LiveBroker, shared: Path) -> None:
    job = submit_as(machine, ALICE, "echo", "hello", stdout=f"{shared}/%j.out", umask=0o027)
    machine.wait(job["id"])
    path = shared / f"{job['id']}.out"
    assert path.read_text() == "hello\n"
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (ALICE, 0o640)
    assert as_user(ALICE, lambda: machine.stdout(job["id"])) == "hello\n"


def test_a_script_is_its_users(machine: LiveBroker) -> None:
    script = base64.b64encode(b"#!/bin/sh\nid -u; basename $0; test -O $0 && echo mine\n").decode()
    job = as_user(ALICE, lambda: machine.client.call("POST", "/v1/jobs", {"script_base64": script, "name": "x"})["job"])
    assert machine.wait(job["id"])["state"] == "completed"
    assert machine.stdout(job["id"]) == f"{ALICE}\nscript\nmine\n"


def test_run_and_attach_reach_their_own_job(machine: LiveBroker) -> None:
    def run() -> tuple[bytes, int]:
        job = machine.submit("sh", "-c", "read x; echo got $x; exit 3", interactive=True)
        answer = machine.client.call("GET", f"/v1/jobs/{job['id']}/attach", timeout_ms=20_000)
        attachment = wait_until(lambda: _try_attach(answer["directory"]), "the supervisor to listen")
        read, write = os.pipe()
        out_read, out_write = os.pipe()
        os.write(write, b"hello\n")
        os.close(write)
        end = attachment.pump(read, out_write, out_write)
        return os.read(out_read, 100), end["exit_code"]

    assert as_user(ALICE, run) == (b"got hello\n", 3)


def _try_attach(directory: str) -> Attachment | None:
    try:
        return Attachment(directory, own=True, terminal=False)
    except OSError:
        return None


def test_everybody_sees_that_a_job_is_there_and_not_what_it_says(machine: LiveBroker, hers: dict[str, Any]) -> None:
    number = hers["id"]

    def look() -> list[bytes]:
        client = machine.client
        paths = [f"/v1/jobs/{number}", "/v1/jobs", f"/v1/jobs/{number}/why", f"/v1/jobs/{number}/wait?timeout_ms=0"]
        return [client.raw("GET", path) for path in [*paths, f"/v1/events?job={number}", "/v1/gpus", "/v1/doctor"]]

    for document in as_user(MALLORY, look):
        assert SECRET.encode() not in document
    seen = as_user(MALLORY, lambda: machine.job(number))
    assert (seen["user"], seen["state"], seen["command"]) == (str(ALICE), "running", ["sh"])
    own = as_user(ALICE, lambda: machine.job(number))
    assert SECRET in own["command"][2] and own["comment"] == SECRET


def test_members_of_the_admin_group_may(machine: LiveBroker) -> None:
    from courtier.api.peer import Peer
    from courtier.daemon.access import viewer_of

    assert viewer_of(Peer(1, 0, 0, "root"), "").admin
    assert not viewer_of(Peer(1, MALLORY, MALLORY, "nobody"), "").admin
    assert viewer_of(Peer(1, 65534, 65534, "nobody"), "nogroup").admin
    assert not viewer_of(Peer(1, 65534, 65534, "nobody"), "root").admin
    assert not viewer_of(Peer(1, 65534, 65534, "nobody"), "no-such-group").admin


# Ways across. Each returns something true when it succeeded in doing harm.


def _refused(action: Callable[[], object]) -> bool:
    """False when the broker said no with exit code 4."""
    try:
        action()
    except RequestRefused as error:
        assert error.exit_code == 4, error.error
        return False
    return True


def _post(verb: str, body: dict[str, Any] | None = None) -> Callable[[LiveBroker, dict[str, Any]], bool]:
    return lambda machine, job: _refused(lambda: machine.post(job["id"], verb, body))


def _get(path: str) -> Callable[[LiveBroker, dict[str, Any]], bool]:
    return lambda machine, job: _refused(lambda: machine.client.raw("GET", path.format(job["id"])))


def _denied(action: Callable[[], object]) -> object:
    try:
        return action() or True
    except (PermissionError, FileNotFoundError):
        return False


def _read(name: str) -> Callable[[LiveBroker, dict[str, Any]], object]:
    def attempt(machine: LiveBroker, job: dict[str, Any]) -> object:
        for path in machine.home.glob(name) if "*" in name else [machine.home / name]:
            if _denied(path.read_bytes):
                return True
        return False

    return attempt


def _of_job(name: str) -> Callable[[LiveBroker, dict[str, Any]], object]:
    return lambda machine, job: _denied((machine.home / name.format(**_places(job))).read_bytes)


def _places(job: dict[str, Any]) -> dict[str, str]:
    return {"id": str(job["id"]), "key": f"{job['id']}.1.1"}


def _write(name: str) -> Callable[[LiveBroker, dict[str, Any]], object]:
    return lambda machine, job: _denied(lambda: (machine.home / name.format(**_places(job))).write_text("x"))


def _listing(name: str) -> Callable[[LiveBroker, dict[str, Any]], object]:
    return lambda machine, job: _denied(lambda: os.listdir(machine.home / name))


def _kill(whom: str) -> Callable[[LiveBroker, dict[str, Any]], object]:
    def attempt(machine: LiveBroker, job: dict[str, Any]) -> object:
        return _denied(lambda: os.kill(_pid(machine, job, whom), signal.SIGTERM))

    return attempt


def _pid(machine: LiveBroker, job: dict[str, Any], whom: str) -> int:
    if whom == "daemon":
        return machine.pid
    return job["pid"] if whom == "job" else job["supervisor"]  # type: ignore[no-any-return]


def _proc(whom: str, name: str) -> Callable[[LiveBroker, dict[str, Any]], object]:
    def attempt(machine: LiveBroker, job: dict[str, Any]) -> object:
        path = Path(f"/proc/{_pid(machine, job, whom)}/{name}")
        return _denied(lambda: os.listdir(path) if name.endswith(("fd", "root/root")) else path.read_bytes())

    return attempt


def _trace(machine: LiveBroker, job: dict[str, Any]) -> object:
    return ctypes.CDLL(None).ptrace(PTRACE_ATTACH, job["pid"], 0, 0) == 0


def _listen_in(machine: LiveBroker, job: dict[str, Any]) -> object:
    """The supervisor closes on a stranger before it hears a word."""
    directory = machine.home / "run" / _places(job)["key"]
    with socket.socket(socket.AF_UNIX) as stream:
        folder = os.open(directory, os.O_PATH)
        stream.connect(f"/proc/self/fd/{folder}/stream.sock")
        with contextlib.suppress(OSError):
            stream.sendall(b'a\0\0\0\x0e{"own": false}')
        stream.settimeout(20)
        try:
            return stream.recv(100)
        except ConnectionResetError:
            return False


def _send_notice(machine: LiveBroker, job: dict[str, Any]) -> object:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        return _denied(lambda: channel.sendto(b"1.1.1 ended", str(machine.home / "run" / "notify.sock")))


def _use_her_key(machine: LiveBroker, job: dict[str, Any]) -> object:
    return machine.submit("true", key="alices")["id"] == job["id"]


ATTEMPTS: dict[str, Callable[[LiveBroker, dict[str, Any]], object]] = {
    "api-cancel": _post("cancel", {}),
    "api-cancel-now": _post("cancel", {"now": True}),
    "api-signal": _post("cancel", {"signal": 9}),
    "api-hold": _post("hold"),
    "api-release": _post("release"),
    "api-requeue": _post("requeue"),
    "api-priority": _post("set", {"priority": 5}),
    "api-time": _post("set", {"time_limit_ms": 1000}),
    "api-logs": _get("/v1/jobs/{}/logs"),
    "api-stderr": _get("/v1/jobs/{}/logs?stream=stderr"),
    "api-tail": _get("/v1/jobs/{}/logs?tail_lines=1"),
    "api-follow": _get("/v1/jobs/{}/logs?follow=1"),
    "api-attach": _get("/v1/jobs/{}/attach?timeout_ms=0"),
    "api-shutdown": lambda machine, job: _refused(lambda: machine.client.call("POST", "/v1/shutdown", {})),
    "api-key": _use_her_key,
    "file-store": _read("courtier.db"),
    "file-wal": _read("courtier.db-wal"),
    "file-broker-log": _read("broker.log"),
    "file-fork-server-log": _read("forkserver.log"),
    "file-lock": _read("lock"),
    "file-stdout": _of_job("logs/0/{id}/1.out"),
    "file-stderr": _of_job("logs/0/{id}/1.err"),
    "file-record": _of_job("run/{key}/record"),
    "file-control": _of_job("run/{key}/control"),
    "file-list-home": _listing(""),
    "file-list-run": _listing("run"),
    "file-list-logs": _listing("logs"),
    "file-list-scripts": _listing("scripts"),
    "file-write-home": _write("x"),
    "file-write-run": _write("run/x"),
    "file-write-control": _write("run/{key}/control"),
    "file-write-scripts": _write("scripts/x"),
    "file-write-srun": _write("bin/srun"),
    "file-write-settings": _write("settings.toml"),
    "socket-stream": _listen_in,
    "socket-notify": _send_notice,
    "process-kill-job": _kill("job"),
    "process-kill-supervisor": _kill("supervisor"),
    "process-kill-daemon": _kill("daemon"),
    "process-trace": _trace,
    "proc-environ-job": _proc("job", "environ"),
    "proc-environ-supervisor": _proc("supervisor", "environ"),
    "proc-environ-daemon": _proc("daemon", "environ"),
    "proc-memory": _proc("supervisor", "mem"),
    "proc-descriptors-job": _proc("job", "fd"),
    "proc-descriptors-daemon": _proc("daemon", "fd"),
    "proc-root": _proc("supervisor", "root/root"),
}


@pytest.mark.parametrize("name", ATTEMPTS)
def test_no_way_across(machine: LiveBroker, hers: dict[str, Any], name: str) -> None:
    job = {**hers, "supervisor": machine.supervisor(hers["id"])}
    assert not as_user(MALLORY, lambda: ATTEMPTS[name](machine, job))
    assert alive(job["pid"]) and alive(job["supervisor"])
    assert machine.job(hers["id"])["state"] == "running"


def test_every_way_is_open_to_root(machine: LiveBroker, hers: dict[str, Any]) -> None:
    """The attempts can tell success from failure: root's succeed where nothing is changed by them."""
    job = {**hers, "supervisor": machine.supervisor(hers["id"])}
    harmless = [name for name in ATTEMPTS if name.startswith(("file-list", "proc-environ"))]
    for name in ["api-logs", "api-attach", "file-store", "file-stdout", "file-record", *harmless]:
        assert ATTEMPTS[name](machine, job), name


# Paths that root opens on somebody's word.


def _root_file(folder: Path) -> Path:
    path = folder / "roots"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("way", ["plain", "link", "swapped-link", "broker-log", "record"])
def test_a_log_path_opens_nothing_with_roots_rights(machine: LiveBroker, shared: Path, way: str) -> None:
    treasure = _root_file(shared)
    if way == "broker-log":
        treasure = machine.home / "broker.log"
    elif way == "record":
        treasure = machine.home / "courtier.db"
    before = treasure.read_bytes()
    path = treasure
    if way == "link":
        path = shared / "link"
        as_user(MALLORY, lambda: os.symlink(treasure, path))
    elif way == "swapped-link":
        path = shared / "swapped"
    script = f"ln -sf {treasure} {path}; exec sleep 0.1" if way == "swapped-link" else "echo overwritten"
    job = submit_as(machine, MALLORY, "sh", "-c", script, stdout=str(path))
    try:

        def refused_or_done() -> dict[str, Any] | None:
            looked: dict[str, Any] = machine.job(job["id"])
            return looked if looked["reason"] is not None or looked["state"] == "completed" else None

        seen = wait_until(refused_or_done)
        assert SECRET not in as_user(MALLORY, lambda: machine.stdout(job["id"]))
        if way != "record":
            assert treasure.read_bytes() == before
        if way != "swapped-link":
            assert seen["started_ms"] is None
            assert "Permission denied" in seen["reason"]["text"]
    finally:
        with contextlib.suppress(RequestRefused):
            machine.post(job["id"], "cancel", {"now": True})


def test_a_directory_is_entered_with_the_users_rights(machine: LiveBroker, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    directory = base64.b64encode(os.fsencode(closed)).decode()
    job = submit_as(machine, MALLORY, "pwd", directory_base64=directory)
    ended = machine.wait(job["id"])
    assert (ended["state"], ended["exit_code"]) == ("failed", 126)


def test_a_command_is_found_with_the_users_rights(machine: LiveBroker, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho ran\n")
    program.chmod(0o700)
    job = submit_as(machine, MALLORY, str(program))
    assert machine.wait(job["id"])["exit_code"] == 126
    assert machine.stdout(job["id"]) == ""


def test_a_user_chooses_no_gpu(machine: LiveBroker) -> None:
    pairs = [("CUDA_VISIBLE_DEVICES", "0,1,2,3"), ("NVIDIA_VISIBLE_DEVICES", "all")]
    encoded = [tuple(base64.b64encode(word.encode()).decode() for word in pair) for pair in pairs]
    job = submit_as(machine, MALLORY, "sh", "-c", 'echo "<$CUDA_VISIBLE_DEVICES>"', environment_base64=encoded)
    machine.wait(job["id"])
    assert machine.stdout(job["id"]) == "<>\n"


def test_one_user_fills_neither_queue_nor_box() -> None:
    base = Path(tempfile.mkdtemp(prefix="courtier-test-"))
    base.chmod(0o755)
    live = LiveBroker(base / "state")
    live.up("--set", "user_jobs_active_max=3", "--set", "user_gpus_max=2")
    try:
        jobs = [submit_as(live, MALLORY, "sleep", "1000", gpus=1)["id"] for _ in range(3)]
        for job in jobs[:2]:
            live.running(job)
        assert live.client.call("GET", f"/v1/jobs/{jobs[2]}/why")["reasons"][0]["code"] == "user_gpus"
        with pytest.raises(Failed, match="3 is the most"):
            submit_as(live, MALLORY, "true")
        with pytest.raises(Failed, match="2 is the most that one user may hold"):
            submit_as(live, ALICE, "true", gpus=3)
        assert live.wait(submit_as(live, ALICE, "true", gpus=2)["id"])["state"] == "completed"
        live.post(jobs[0], "cancel", {"now": True})
        live.running(jobs[2])
    finally:
        live.stop()
        shutil.rmtree(base, ignore_errors=True)
