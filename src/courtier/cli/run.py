"""`run`, `shell` and `attach`: a job's terminal here. The exit code is the job's own.

The bytes go straight between this process and the job's supervisor, so a restart of the broker cuts nothing.
"""

import argparse
import os
import signal
import sys
import time
from typing import Any

from courtier.adapters.process.attach import Attachment
from courtier.api.client import Client, NoBroker, RequestRefused
from courtier.cli.body import submit_body
from courtier.cli.failure import Failure
from courtier.cli.flags import add_job_flags, ignored_given
from courtier.cli.options import parse_targets
from courtier.cli.submit import (
    add_local_flags,
    command_words,
    put_command,
    put_environment,
    split_command,
    warn_ignored,
)
from courtier.cli.wait import ended_jobs, exit_code_of

EXAMPLES = {
    "run": "courtier run --gpus 1 -- nvidia-smi",
    "shell": "courtier shell --gpus 1",
    "attach": "courtier attach 12",
}
WAIT_MS = 10_000
CONNECT_PAUSE_SECONDS = 0.01
JOIN_SECONDS_MAX = 5.0


def configure(verb: str, parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"example: {EXAMPLES[verb]}"
    parser.add_argument("-o", dest="no_format", help=argparse.SUPPRESS)
    if verb == "attach":
        parser.add_argument("job", metavar="JOB")
        return
    add_job_flags(parser)
    add_local_flags(parser)
    if verb == "run":
        parser.add_argument("command", nargs="*", help="the command, after --")


def execute(verb: str, parser: argparse.ArgumentParser, argv: list[str]) -> int:
    flags, command = split_command(argv)
    arguments = parser.parse_args(flags)
    if arguments.no_format is not None:
        raise Failure("usage", f"{verb} has no -o; a log file is --output", 2)
    client = Client()
    if verb == "attach":
        return _attach(client, arguments)
    words = command if command is not None else getattr(arguments, "command", [])
    if verb == "shell":
        words = [os.environ.get("SHELL") or "/bin/sh"]
    terminal = os.isatty(0) and os.isatty(1)
    body = submit_body(arguments, now_ms=time.time_ns() // 1_000_000, directory=os.getcwdb())
    put_command(body, command_words(words, shell=arguments.shell))
    put_environment(body, arguments)
    body.update(interactive=True, terminal=terminal)
    body.setdefault("class", "interactive")
    warn_ignored(ignored_given(arguments))
    job = client.call("POST", "/v1/jobs", body)["job"]
    return _follow(client, job["id"], terminal=terminal)


def _follow(client: Client, number: int, *, terminal: bool) -> int:
    try:
        attachment = _wait_attachment(client, number, terminal=terminal)
    except KeyboardInterrupt:
        client.raw("POST", f"/v1/jobs/{number}/cancel", {})
        return 130
    if attachment is not None:
        signal.signal(signal.SIGINT, lambda *_: _cancel(client, number))
        attachment.pump(0, 1, 2)
    (job,) = ended_jobs(client, [number], timeout_ms=None)
    return exit_code_of(job)


def _wait_attachment(client: Client, number: int, *, terminal: bool) -> Attachment | None:
    """The joined job; None when it ended first.

    A supervisor is known by its claim, a moment before it listens: it waits for its client, so this one tries again.
    """
    while True:
        directory = _wait_directory(client, number, say=os.isatty(2))
        if directory is None:
            return None
        try:
            return Attachment(directory, own=True, terminal=terminal)
        except OSError:
            time.sleep(CONNECT_PAUSE_SECONDS)


def _cancel(client: Client, number: int) -> None:
    """Ctrl-C, once, cancels; the job's end then ends this command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        Client(client.home).raw("POST", f"/v1/jobs/{number}/cancel", {})
    except (NoBroker, RequestRefused) as error:
        sys.stderr.write(f"courtier: {error}\n")


def _wait_directory(client: Client, number: int, *, say: bool) -> str | None:
    """Where the supervisor listens; None when the job ended before it had one."""
    said: str | None = None
    while True:
        answer: dict[str, Any] = client.call("GET", f"/v1/jobs/{number}/attach", timeout_ms=WAIT_MS)
        if answer["directory"] is not None:
            return str(answer["directory"])
        if answer["state"] not in ("pending", "held", "starting", "running", "completing"):
            return None
        reason = answer["reason"]
        if say and reason is not None and reason["text"] != said:
            said = reason["text"]
            sys.stderr.write(f"courtier: job {number} {said}\n")


def _join(client: Client, number: int) -> Attachment:
    """A running job's output. A supervisor is known a moment before it listens: asked again for a short while."""
    deadline = time.monotonic() + JOIN_SECONDS_MAX
    while True:
        answer = client.call("GET", f"/v1/jobs/{number}/attach", timeout_ms=0)
        if answer["directory"] is None:
            text = f"job {number} is {answer['state']}: nothing to attach to (courtier logs {number})"
            raise Failure("not_running", text, 1, job=number)
        try:
            return Attachment(answer["directory"], own=False, terminal=False)
        except OSError as error:
            if time.monotonic() > deadline:
                text = f"job {number} can not be attached to: {error.strerror}"
                raise Failure("not_running", text, 1, job=number) from error
        time.sleep(CONNECT_PAUSE_SECONDS)


def _attach(client: Client, arguments: argparse.Namespace) -> int:
    number = parse_targets(client, [arguments.job])[0]
    attachment = _join(client, number)
    try:
        attachment.pump(0, 1, 2)
    except KeyboardInterrupt:
        return 0
    return 0
