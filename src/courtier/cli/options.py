"""Options that many verbs share, and what their values mean. Builds and checks; asks no broker."""

import argparse
import re
from typing import Any

from courtier.api.client import Client, RequestRefused
from courtier.cli.failure import Failure

FORMATS = ("table", "wide", "json", "csv", "name")
STATES = {
    "PD": "pending",
    "CF": "starting",
    "R": "running",
    "CG": "completing",
    "CD": "completed",
    "F": "failed",
    "CA": "cancelled",
    "TO": "timeout",
    "OOM": "out_of_memory",
    "NF": "lost",
    "PR": "preempted",
}
_TARGET = re.compile(r"^(\d+)(?:_(\d+)|_\[([\d,-]+)\]|-(\d+))?$")


def add_output(parser: argparse.ArgumentParser, *, formats: tuple[str, ...] = FORMATS) -> None:
    parser.add_argument("-o", dest="format", metavar="FORMAT", default="table", help=f"one of {', '.join(formats)}")
    parser.add_argument("-q", dest="quiet", action="store_true", help="ids only, one a line")


def check_format(arguments: argparse.Namespace) -> None:
    """-o is the output format everywhere; log files are --output."""
    value = getattr(arguments, "format", "table")
    if value not in FORMATS:
        raise Failure("usage", f"-o {value}: the format is one of {', '.join(FORMATS)}; a log file is --output", 2)


def parse_states(text: str | None) -> str | None:
    """Long or two-letter names, comma separated, as the wire has them."""
    if text is None:
        return None
    long_names = set(STATES.values()) | {"held"}
    found = []
    for word in text.split(","):
        name = STATES.get(word.upper(), word.lower())
        if name not in long_names:
            raise Failure("usage", f"no state {word!r}: there are {', '.join(sorted(long_names))}", 2)
        found.append(name)
        if word.upper() == "PD":
            found.append("held")
    return ",".join(found)


def parse_targets(client: Client, words: list[str]) -> list[int]:
    """Numbers of jobs and arrays: 12, 15-20, 12_3, 12_[3-5]."""
    numbers: list[int] = []
    for word in words:
        match = _TARGET.match(word)
        if match is None or len(word) > 200:
            raise Failure("usage", f"{word[:80]!r} is not a job: write 12, 15-20, 12_3 or 12_[3-5]", 2)
        first, index, indices, last = match.groups()
        if len(first) > 18:
            raise Failure("job_unknown", f"no job or array {first}", 5, job=first)
        if last is not None:
            if int(last) - int(first) > 100_000:
                raise Failure("usage", f"{word!r} names too many jobs", 2)
            numbers += range(int(first), int(last) + 1)
        elif index is not None or indices is not None:
            numbers += _elements(client, int(first), index or indices)
        else:
            numbers.append(int(first))
    return numbers


def _elements(client: Client, array: int, indices: str) -> list[int]:
    from courtier.domain.units import parse_array

    try:
        wanted, _ = parse_array(indices)
    except ValueError as error:
        raise Failure("usage", str(error), 2) from error
    try:
        jobs = client.call("GET", f"/v1/jobs/{array}").get("jobs", [])
    except RequestRefused:
        jobs = []
    by_index = {job["array_index"]: job["id"] for job in jobs}
    missing = [index for index in wanted if index not in by_index]
    if missing:
        raise Failure("job_unknown", f"no job {array}_{missing[0]}", 5, job=array)
    return [by_index[index] for index in wanted]


def usage_error(error: ValueError) -> Failure:
    return Failure("usage", str(error), 2)


def dump(document: Any) -> None:
    import json

    print(json.dumps(document, ensure_ascii=False))
