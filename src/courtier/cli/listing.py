"""Verbs that look: ps, show, why, history, events, gpus. They change nothing."""

import argparse
import getpass
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from courtier.api.client import Client, RequestRefused
from courtier.cli import columns, render
from courtier.cli.failure import Failure
from courtier.cli.options import add_output, check_format, parse_states, parse_targets, usage_error
from courtier.domain.units import parse_duration

ROWS_MAX = 200
WATCH_SECONDS = 1.0
EXAMPLES = {
    "ps": "courtier ps --me --state PD,R -o wide",
    "queue": "courtier queue -o json",
    "show": "courtier show 12",
    "why": "courtier why 12",
    "history": "courtier history --since 7d --state failed -o csv",
    "events": "courtier events 12 -o json",
    "gpus": "courtier gpus -w",
}


def configure(verb: str, parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"example: {EXAMPLES[verb]}"
    add_output(parser)
    if verb in ("ps", "queue", "history"):
        parser.add_argument("-u", "--user", help="jobs of this user")
        parser.add_argument("--me", action="store_true", help="my jobs")
        parser.add_argument("--state", "-t", help="long or two-letter names, comma separated")
        parser.add_argument("--name", "-J", help="jobs of this name")
    if verb in ("ps", "queue"):
        parser.add_argument("-a", "--all", action="store_true", help="ended jobs too")
        parser.add_argument("-w", "--watch", action="store_true", help="again at every change")
        parser.add_argument("jobs", nargs="*", metavar="JOB")
    elif verb == "history":
        parser.add_argument("--since", help="how far back, as in 7d")
        parser.add_argument("-n", "--limit", type=int, help="the newest so many")
    elif verb == "events":
        parser.add_argument("job", nargs="?", metavar="JOB")
        parser.add_argument("-w", "--watch", action="store_true", help="go on as they happen, one a line")
        parser.add_argument("--after", type=int, default=0, help="only those with a greater sequence")
    elif verb == "gpus":
        parser.add_argument("-w", "--watch", action="store_true", help="again every second")
    else:
        parser.add_argument("job", metavar="JOB")


def execute(verb: str, parser: argparse.ArgumentParser, argv: list[str]) -> int:
    arguments = parser.parse_args(argv)
    check_format(arguments)
    actions: dict[str, Callable[[Client, argparse.Namespace], int]] = {
        "ps": _ps,
        "queue": _ps,
        "show": _show,
        "why": _why,
        "history": _history,
        "events": _events,
        "gpus": _gpus,
    }
    return actions[verb](Client(), arguments)


def _raw(document: bytes) -> None:
    sys.stdout.buffer.write(document + b"\n")
    sys.stdout.buffer.flush()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _user(arguments: argparse.Namespace) -> str | None:
    return getpass.getuser() if arguments.me else arguments.user


def _ps(client: Client, arguments: argparse.Namespace) -> int:
    while True:
        _ps_once(client, arguments)
        if not arguments.watch:
            return 0
        time.sleep(WATCH_SECONDS)


def _ps_once(client: Client, arguments: argparse.Namespace) -> None:
    ids = ",".join(map(str, parse_targets(client, arguments.jobs))) or None
    people = arguments.format in ("table", "wide") and not arguments.quiet
    document = client.raw(
        "GET",
        "/v1/jobs",
        state=parse_states(arguments.state),
        user=_user(arguments),
        name=arguments.name,
        ids=ids,
        all=1 if arguments.all else None,
        limit=ROWS_MAX if people else None,
    )
    _print_jobs(document, arguments, people=people)


def _print_jobs(document: bytes, arguments: argparse.Namespace, *, people: bool) -> None:
    if arguments.format == "json" and not arguments.quiet:
        _raw(document)
        return
    answer = json.loads(document)
    jobs: list[dict[str, Any]] = answer["jobs"]
    if arguments.quiet or arguments.format == "name":
        render.write("".join(f"{job['id']}\n" for job in jobs))
        return
    if arguments.format == "csv":
        render.write(render.csv_text(columns.JOB_CSV, [columns.job_csv(job) for job in jobs]))
        return
    rows = [render.job_row(job, _now_ms()) for job in jobs]
    if arguments.format == "wide":
        wide = [columns.job_wide(job, row) for job, row in zip(jobs, rows, strict=True)]
        render.write(render.table(columns.JOB_WIDE, wide))
    else:
        render.write(render.table(render.JOB_HEADER, [[*row[:-1], row[-1][:60]] for row in rows]))
    total = answer.get("total") or len(jobs)
    if people and total > len(jobs):
        render.write(f"{len(jobs)} of {total} jobs; -o json shows all\n")


def _show(client: Client, arguments: argparse.Namespace) -> int:
    (number,) = parse_targets(client, [arguments.job])[:1]
    document = client.raw("GET", f"/v1/jobs/{number}")
    if arguments.format == "json":
        _raw(document)
        return 0
    job = json.loads(document)["job"]
    if arguments.quiet or arguments.format == "name":
        render.write(f"{job['id']}\n")
        return 0
    if arguments.format == "csv":
        render.write(render.csv_text(columns.JOB_CSV, [columns.job_csv(job)]))
        return 0
    try:
        tail = client.raw("GET", f"/v1/jobs/{job['id']}/logs", tail_lines=5).decode("utf-8", "replace")
    except RequestRefused:
        tail = ""  # somebody else's job: its output is not shown
    render.write(render.job_page(job, tail))
    return 0


def _why(client: Client, arguments: argparse.Namespace) -> int:
    (number,) = parse_targets(client, [arguments.job])[:1]
    document = client.raw("GET", f"/v1/jobs/{number}/why")
    if arguments.format == "json":
        _raw(document)
        return 0
    answer = json.loads(document)
    for reason in answer["reasons"]:
        render.write(f"job {answer['job']} {render.clean(reason['text'])} [{reason['code']}]\n")
    if not answer["reasons"]:
        render.write(f"job {answer['job']}: nothing to explain, it was not refused anything\n")
    return 0


def _history(client: Client, arguments: argparse.Namespace) -> int:
    since_ms = None
    if arguments.since is not None:
        try:
            span_ms = parse_duration(arguments.since)
        except ValueError as error:
            raise usage_error(error) from error
        since_ms = None if span_ms is None else max(0, _now_ms() - span_ms)
    document = client.raw(
        "GET",
        "/v1/history",
        since_ms=since_ms,
        user=_user(arguments),
        state=parse_states(arguments.state),
        name=arguments.name,
        limit=arguments.limit,
    )
    _print_jobs(document, arguments, people=False)
    return 0


def _events(client: Client, arguments: argparse.Namespace) -> int:
    job = parse_targets(client, [arguments.job])[0] if arguments.job is not None else None
    if arguments.watch:
        pending = b""
        for piece in client.stream("/v1/events", job=job, after=arguments.after, follow=1):
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines:
                _print_event(line, arguments)
        return 0
    document = client.raw("GET", "/v1/events", job=job, after=arguments.after)
    if arguments.format == "json":
        _raw(document)
        return 0
    events = json.loads(document)["events"]
    if arguments.format == "csv":
        render.write(render.csv_text(columns.EVENT_CSV, [columns.event_csv(event) for event in events]))
        return 0
    for event in events:
        render.write(_event_line(event))
    return 0


def _print_event(line: bytes, arguments: argparse.Namespace) -> None:
    if arguments.format == "json":
        _raw(line)
    else:
        render.write(_event_line(json.loads(line)))


def _event_line(event: dict[str, Any]) -> str:
    reason = event.get("reason")
    words = f"  {render.clean(reason['text'])}" if isinstance(reason, dict) else ""
    whom = f"job {event['job']}" if event["job"] is not None else str(event.get("gpu", ""))[:12]
    return f"{event['sequence']:>7}  {render.instant(event['at_ms'])}  {whom:<12} {event['kind']}{words}\n"


def _gpus(client: Client, arguments: argparse.Namespace) -> int:
    while True:
        document = client.raw("GET", "/v1/gpus")
        if arguments.format == "json":
            _raw(document)
        else:
            gpus = json.loads(document)["gpus"]
            if arguments.quiet or arguments.format == "name":
                render.write("".join(f"{gpu['uuid']}\n" for gpu in gpus))
            elif arguments.format == "csv":
                render.write(render.csv_text(columns.GPU_CSV_ALL, [columns.gpu_csv(gpu) for gpu in gpus]))
            elif arguments.format == "wide":
                rows = [columns.gpu_wide(gpu, render.gpu_row(gpu)) for gpu in gpus]
                render.write(render.table(columns.GPU_WIDE, rows))
            else:
                render.write(render.table(render.GPU_HEADER, [render.gpu_row(gpu) for gpu in gpus]))
                render.write("".join(render.gpu_notes(gpu) for gpu in gpus))
                if not gpus:
                    render.write("no GPUs here: courtier doctor says why\n")
        if not arguments.watch:
            return 0
        time.sleep(WATCH_SECONDS)


def first_number(client: Client, word: str) -> int:
    """The number that one word means. Raises Failure when it means several jobs."""
    numbers = parse_targets(client, [word])
    if len(numbers) != 1:
        raise Failure("usage", f"{word!r} names {len(numbers)} jobs, one is wanted", 2)
    return numbers[0]
