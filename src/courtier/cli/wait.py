"""`courtier wait`: until jobs have ended, with the highest of their exit codes. Outlives a restart of the broker."""

import argparse
import sys
import time
from typing import Any

from courtier.api.client import Client, NoBroker
from courtier.cli.failure import OWN_FAILURE, Failure
from courtier.cli.options import add_output, check_format, dump, parse_targets, usage_error
from courtier.domain.units import parse_duration

POLL_MS = 30_000
RECONNECT_SECONDS = 60.0
TIME_LIMIT_CODE = 124


def configure(verb: str, parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: courtier wait 12 13 --timeout 2h"
    add_output(parser)
    parser.add_argument("--timeout", help="give up after this long")
    parser.add_argument("jobs", nargs="+", metavar="JOB")


def execute(verb: str, parser: argparse.ArgumentParser, argv: list[str]) -> int:
    arguments = parser.parse_args(argv)
    check_format(arguments)
    timeout_ms = None
    if arguments.timeout is not None:
        try:
            timeout_ms = parse_duration(arguments.timeout)
        except ValueError as error:
            raise usage_error(error) from error
    client = Client()
    numbers = parse_targets(client, arguments.jobs)
    jobs = ended_jobs(client, numbers, timeout_ms=timeout_ms)
    if arguments.format == "json":
        dump({"version": 1, "jobs": jobs})
    elif arguments.quiet:
        print("\n".join(str(job["id"]) for job in jobs))
    return max((exit_code_of(job) for job in jobs), default=0)


def wait_for(client: Client, numbers: list[int], *, timeout_ms: int | None) -> int:
    """The highest exit code of these jobs or arrays."""
    return max((exit_code_of(job) for job in ended_jobs(client, numbers, timeout_ms=timeout_ms)), default=0)


def ended_jobs(client: Client, numbers: list[int], *, timeout_ms: int | None) -> list[dict[str, Any]]:
    deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    jobs: list[dict[str, Any]] = []
    for number in numbers:
        while True:
            left_ms = POLL_MS if deadline is None else int((deadline - time.monotonic()) * 1000)
            if left_ms <= 0:
                text = f"job {number} has not ended within the timeout"
                raise Failure("timeout", text, 1, job=number)
            answer = poll(client, number, min(POLL_MS, left_ms))
            if answer["done"]:
                jobs += answer["jobs"]
                break
    return jobs


def poll(client: Client, number: int, timeout_ms: int) -> dict[str, Any]:
    """One long poll; a broker that is away is waited for, since its jobs go on without it."""
    deadline = time.monotonic() + RECONNECT_SECONDS
    first = True
    while True:
        try:
            return client.call("GET", f"/v1/jobs/{number}/wait", timeout_ms=timeout_ms)
        except NoBroker:
            if first and not (client.home / "lock").exists():
                raise
            if time.monotonic() > deadline:
                raise
            first = False
            time.sleep(0.2)


def exit_code_of(job: dict[str, Any]) -> int:
    """The job's own code; 124 on its time limit, 128+n after a signal, 125 when it never ran or its end is unknown."""
    if job["state"] == "timeout":
        return TIME_LIMIT_CODE
    if job["exit_code"] is not None:
        return int(job["exit_code"])
    if job["signal"] is not None:
        return 128 + int(job["signal"])
    text = job["reason"]["text"] if job["reason"] is not None else "its end is not known"
    sys.stderr.write(f"courtier: job {job['id']} is {job['state']}: {text}\n")
    return OWN_FAILURE
