"""Verbs that change jobs: cancel, hold, release, set, requeue. Every target is tried; the worst exit code counts."""

import argparse
import getpass
import json
import sys
from collections.abc import Callable
from typing import Any

from courtier.api.client import Client, RequestRefused
from courtier.cli.body import signal_number
from courtier.cli.failure import Failure
from courtier.cli.options import add_output, check_format, dump, parse_states, parse_targets, usage_error
from courtier.domain import units

EXAMPLES = {
    "cancel": "courtier cancel 12 15-20 --now",
    "hold": "courtier hold 12",
    "release": "courtier release 12",
    "set": "courtier set 12 priority=5 time=2h",
    "requeue": "courtier requeue 12",
}
DONE = {"cancel": "Cancelled", "hold": "Held", "release": "Released", "set": "Changed", "requeue": "Requeued"}


def configure(verb: str, parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"example: {EXAMPLES[verb]}"
    add_output(parser)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="12, 15-20, 12_3, 12_[3-5], or an array's number")
    if verb == "cancel":
        parser.add_argument("--me", action="store_true", help="all my jobs")
        parser.add_argument("-u", "--user", help="all jobs of this user")
        parser.add_argument("--name", "-J", help="all jobs of this name")
        parser.add_argument("--state", "-t", help="all jobs in these states")
        parser.add_argument("--signal", "-s", help="only send this signal")
        parser.add_argument("--now", action="store_true", help="KILL at once, no grace")


def execute(verb: str, parser: argparse.ArgumentParser, argv: list[str]) -> int:
    arguments = parser.parse_args(argv)
    check_format(arguments)
    client = Client()
    body: dict[str, Any] = {}
    words = list(arguments.jobs)
    if verb == "set":
        changes = [word for word in words if "=" in word]
        words = [word for word in words if "=" not in word]
        body = _changes(changes)
    elif verb == "cancel":
        body = _cancel_body(arguments)
    numbers = parse_targets(client, words)
    if verb == "cancel":
        numbers += _selected(client, arguments)
    if not numbers:
        if verb == "cancel" and any((arguments.me, arguments.user, arguments.name, arguments.state)):
            return _report(verb, arguments, [], [])
        raise Failure("usage", f"which job? {EXAMPLES[verb]}", 2)
    return _each(client, verb, arguments, numbers, body)


def _cancel_body(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.signal is None:
        return {"now": arguments.now}
    try:
        return {"signal": signal_number(arguments.signal)}
    except ValueError as error:
        raise usage_error(error) from error


def _selected(client: Client, arguments: argparse.Namespace) -> list[int]:
    if not any((arguments.me, arguments.user, arguments.name, arguments.state)):
        return []
    user = getpass.getuser() if arguments.me else arguments.user
    answer = client.call("GET", "/v1/jobs", user=user, name=arguments.name, state=parse_states(arguments.state))
    return [job["id"] for job in answer["jobs"]]


_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "priority": ("priority", int),
    "nice": ("priority", lambda text: -int(text)),
    "time": ("time_limit_ms", lambda text: units.parse_duration(text) or 0),
    "name": ("name", str),
    "queue": ("queue", str),
    "comment": ("comment", str),
    "gpus": ("gpus", int),
    "gpu-mem": ("gpu_memory_bytes", units.parse_size),
    "cpus": ("cpus", int),
    "mem": ("memory_bytes", units.parse_size),
    "array-limit": ("array_limit", int),
}


def _changes(words: list[str]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        field = _FIELDS.get(name.replace("_", "-"))
        if field is None:
            raise Failure("usage", f"{name!r} can not be set: there are {', '.join(_FIELDS)}", 2)
        try:
            body[field[0]] = field[1](text)
        except ValueError as error:
            raise Failure("usage", f"{name}: {error}", 2) from error
    if not body:
        raise Failure("usage", f"what to set? {EXAMPLES['set']}", 2)
    return body


def _each(client: Client, verb: str, arguments: argparse.Namespace, numbers: list[int], body: dict[str, Any]) -> int:
    jobs: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    for number in numbers:
        try:
            content = body if verb in ("set", "cancel") else None
            jobs += client.call("POST", f"/v1/jobs/{number}/{verb}", content)["jobs"]
        except RequestRefused as refused:
            errors.append(refused.error)
    return _report(verb, arguments, jobs, errors)


def _report(verb: str, arguments: argparse.Namespace, jobs: list[dict[str, Any]], errors: list[dict[str, Any]]) -> int:
    for error in errors:
        sys.stderr.write(f"courtier: {error['text']}\n")
    if arguments.format == "json":
        if errors and not jobs:
            dump({"version": 1, "error": errors[0]})
        else:
            print(json.dumps({"version": 1, "jobs": jobs, **({"errors": errors} if errors else {})}))
    elif arguments.quiet or arguments.format == "name":
        for job in jobs:
            print(job["id"])
    elif jobs:
        shown = ", ".join(str(job["id"]) for job in jobs[:10]) + (" ..." if len(jobs) > 10 else "")
        print(f"{DONE[verb]} {len(jobs)} job(s): {shown}")
    elif not errors:
        print("no such jobs")
    return max((int(error.get("exit_code", 1)) for error in errors), default=0)
