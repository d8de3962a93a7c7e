"""What lists say to programs and to wide terminals, and what a dry run finds."""

import csv
import io
import json

from conftest import LiveBroker, document


def rows(text: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.decode())))


def test_csv_holds_exact_values(broker: LiveBroker) -> None:
    job = broker.wait(broker.submit("sh", "-c", "exit 3", gpus=2, name='a "b",c')["id"])
    (row,) = [row for row in rows(broker.cli("history", "-o", "csv").stdout) if row["id"] == str(job["id"])]
    assert (row["name"], row["state"], row["exit_code"], row["reason"]) == ('a "b",c', "failed", "3", "nonzero_exit")
    assert (row["started_ms"], row["gpus"], len(row["allocated_gpus"].split(";"))) == (str(job["started_ms"]), "2", 2)
    gpus = rows(broker.cli("gpus", "-o", "csv").stdout)
    assert [row["index"] for row in gpus] == [str(n) for n in range(8)]
    assert int(gpus[0]["memory_bytes_total"]) > 1 << 36
    events = rows(broker.cli("events", str(job["id"]), "-o", "csv").stdout)
    assert [row["kind"] for row in events] == broker.kinds(job["id"])


def test_wide_says_more(broker: LiveBroker) -> None:
    narrow, wide = (broker.cli("gpus", *words).stdout.decode() for words in ([], ["-o", "wide"]))
    uuid = broker.client.call("GET", "/v1/gpus")["gpus"][0]["uuid"]
    assert uuid in wide and uuid not in narrow


def test_a_dry_run_says_where_or_why_not_and_leaves_nothing(own_broker: LiveBroker) -> None:
    found = document(own_broker.cli("submit", "--dry-run", "--gpus", "2", "-o", "json", "--", "true"))["job"]
    assert found["id"] is None
    assert len(found["allocation"]["gpus"]) == 2
    holder = own_broker.submit("sleep", "1000", gpus=7)
    own_broker.running(holder["id"])
    waits = document(own_broker.cli("submit", "--dry-run", "--gpus", "2", "-o", "json", "--", "true"))["job"]
    assert (waits["allocation"], waits["reason"]["code"], waits["reason"]["gpus_free"]) == (None, "resources", 1)
    text = own_broker.cli("submit", "--dry-run", "--gpus", "1", "--", "true").stdout.decode()
    assert text.startswith("It would start now on GPU ")
    assert own_broker.submit("true")["id"] == holder["id"] + 1
    assert own_broker.client.call("GET", "/v1/events")["events"][-1]["job"] == holder["id"] + 1


def test_logs_are_one_document_and_followed_ones_a_document_a_line(broker: LiveBroker) -> None:
    job = broker.wait(broker.submit("sh", "-c", "echo out ü; echo err >&2")["id"])["id"]
    assert document(broker.cli("logs", str(job), "-o", "json")) == {
        "version": 1,
        "job": job,
        "stdout": "out ü\n",
        "stderr": "err\n",
    }
    lines = [json.loads(line) for line in broker.cli("logs", "-f", str(job), "-o", "json").stdout.splitlines()]
    assert sorted((line["stream"], line["text"]) for line in lines) == [("stderr", "err\n"), ("stdout", "out ü\n")]
