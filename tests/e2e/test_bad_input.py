"""Bad input gets a clear error with the right exit code, and nothing is lost."""

import json
import os
import socket
import threading
from typing import Any

import pytest

from conftest import LiveBroker, document, wait_until
from courtier.api.client import RequestRefused


@pytest.mark.parametrize(
    ("words", "exit_code", "text"),
    [
        (["bogus"], 2, "no verb"),
        (["submit", "--bogus", "--", "true"], 2, "--bogus"),
        (["submit"], 2, "SCRIPT"),
        (["submit", "--"], 2, "no command"),
        (["submit", "/nonexistent.sh"], 2, "No such file"),
        (["submit", "--gpus", "9", "--", "true"], 2, "this box has 8"),
        (["submit", "--gpus", "-1", "--", "true"], 2, "-1"),
        (["submit", "--gpu-mem", "90G", "--", "true"], 2, "--split"),
        (["submit", "--gpu-mem", "9000G", "--split", "--", "true"], 2, "all GPUs here have"),
        (["submit", "--gpu-mem", "18", "--", "true"], 2, "18G"),
        (["submit", "--gpu-mem", "99999999999T", "--", "true"], 2, "more than any"),
        (["submit", "--mem=-3G", "--", "true"], 2, "-3G"),
        (["submit", "--cpus", "100000", "--", "true"], 2, "CPUs asked for"),
        (["submit", "--cpus", "0", "--", "true"], 2, "cpus 0"),
        (["submit", "--gpus", "h100:1", "--", "true"], 2, "h100"),
        (["submit", "--time", "soon", "--", "true"], 2, "not a duration"),
        (["submit", "--array", "9-0", "--", "true"], 2, "9-0"),
        (["submit", "--array", "0-99999", "--", "true"], 2, "is the most"),
        (["submit", "-d", "afterok:99999", "--", "true"], 2, "does not exist"),
        (["submit", "-d", "sometime:1", "--", "true"], 2, "sometime"),
        (["submit", "--class", "royal", "--", "true"], 2, "royal"),
        (["submit", "--mig", "1g.10gb", "--", "true"], 2, "partitioned"),
        (["submit", "--nodes", "2", "--", "true"], 2, "one machine"),
        (["ps", "-o", "yaml"], 2, "--output"),
        (["show", "99999"], 5, "no job or array 99999"),
        (["show", "x"], 2, "not a job"),
        (["cancel", "99999"], 5, "99999"),
        (["cancel"], 2, "which job"),
        (["set", "1"], 2, "what to set"),
        (["wait", "99999"], 125, "99999"),
        (["run", "-o", "json", "--", "true"], 125, "--output"),
        (["logs", "99999"], 5, "99999"),
        (["up", "--simulate", "8xQ9000"], 2, "COUNTxMODEL"),
        (["up", "--simulate", "2xL4"], 1, "another box"),
        (["up", "--set", "bogus=1"], 2, "no setting"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_wrong_usage_is_told(broker: LiveBroker, words: list[str], exit_code: int, text: str) -> None:
    done = broker.cli(*words, check=False)
    assert (done.returncode, text in done.stderr.decode()) == (exit_code, True), done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_errors_are_documents_too(broker: LiveBroker) -> None:
    done = broker.cli("submit", "--gpus", "9", "-o", "json", "--", "true", check=False)
    error = document(done)["error"]
    assert (error["code"], error["gpus"], error["gpus_total"]) == ("gpus_exceed_inventory", 9, 8)
    assert document(broker.cli("wait", "99999", "-o", "json", check=False))["error"]["exit_code"] == 5


def test_no_broker_is_3(broker: LiveBroker, tmp_path: Any) -> None:
    other = LiveBroker(tmp_path)
    done = other.cli("ps", "-o", "json", check=False)
    assert (done.returncode, document(done)["error"]["code"]) == (3, "no_broker")
    assert b"courtier up" in done.stderr


def test_binary_and_unicode_arguments_arrive(broker: LiveBroker) -> None:
    refused = {"command_base64": ["cHJpbnRm", "AAA="]}
    with pytest.raises(RequestRefused, match="NUL"):
        broker.client.call("POST", "/v1/jobs", refused)
    body = {"command_base64": ["cHJpbnRm", "JXM=", "/yDDqQ=="], "name": "grüß \N{ROCKET}\x07"}
    job = broker.client.call("POST", "/v1/jobs", body)["job"]
    assert job["command_base64"] == body["command_base64"]
    broker.wait(job["id"])
    assert broker.client.raw("GET", f"/v1/jobs/{job['id']}/logs") == b"\xff \xc3\xa9"
    assert b"\x07" not in broker.cli("ps", "-a").stdout


MALFORMED = (
    b"\r\n\r\n",
    b"GET\r\n\r\n",
    b'POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n{"a":',
    b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n\xff\xfe\x00",
    b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 200\r\n\r\n" + b"[" * 200,
    b"GET /v1/jobs?ids=1,,2 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/jobs?limit=99999999999999999999999 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/jobs/%00 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/jobs/-1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"DELETE /v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
)


@pytest.mark.parametrize("request_bytes", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_http_is_4xx(broker: LiveBroker, request_bytes: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(broker.home / "broker.sock"))
        connection.sendall(request_bytes)
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 4"), answer
    assert broker.client.health()["status"] == "ok"


def test_huge_arguments_are_refused_before_the_kernel_does(broker: LiveBroker) -> None:
    with pytest.raises(RequestRefused, match="the kernel takes"):
        broker.submit("echo", "x" * 131_072)
    with pytest.raises(RequestRefused, match="is the most"):
        broker.submit("echo", *["x" * 100_000] * 25)


def test_a_thousand_submits_at_once_lose_nothing(own_broker: LiveBroker) -> None:
    ids: list[int] = []
    lock = threading.Lock()

    def submit_some() -> None:
        for _ in range(50):
            number = own_broker.submit("true", hold=True)["id"]
            with lock:
                ids.append(number)

    threads = [threading.Thread(target=submit_some) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 1000
    listed = json.loads(own_broker.cli("ps", "-o", "json").stdout)
    assert sorted(job["id"] for job in listed["jobs"]) == sorted(ids)
    shown = own_broker.cli("ps").stdout.decode().splitlines()
    assert len(shown) == 202
    assert "200 of 1000" in shown[-1]


def test_other_user_of_the_socket_is_kept_out(broker: LiveBroker) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in (broker.home, broker.home / "broker.sock")}
    # Root's broker serves everybody, who may pass through and knock; another's is closed.
    wanted = (0o711, 0o666) if os.geteuid() == 0 else (0o700, 0o600)
    assert tuple(modes.values()) == wanted


def test_tcp_needs_the_token(own_broker: LiveBroker) -> None:
    import http.client

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own_broker.cli("down")
    own_broker.up("--listen", f"127.0.0.1:{port}")
    token = (own_broker.home / "token").read_text().strip()
    for shown, status in (("", 401), ("Bearer wrong", 401), (f"Bearer {token}", 200)):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/v1/gpus", headers={"Authorization": shown} if shown else {})
        assert connection.getresponse().status == status
        connection.close()


def test_wait_outlives_a_restart(own_broker: LiveBroker) -> None:
    job = own_broker.submit("sh", "-c", "sleep 1; exit 6")
    own_broker.running(job["id"])
    codes: list[int] = []
    waiter = threading.Thread(
        target=lambda: codes.append(own_broker.cli("wait", str(job["id"]), check=False).returncode)
    )
    waiter.start()
    own_broker.kill()
    own_broker.up()
    waiter.join(30)
    assert codes == [6]
    wait_until(lambda: own_broker.job(job["id"])["state"] == "failed")
