"""`courtier logs`: a job's output, byte for byte: its stdout on stdout, its stderr on stderr."""

import argparse
import codecs
import json
import sys
import threading
from typing import Any, BinaryIO

from courtier.api.client import Client
from courtier.cli.failure import Failure
from courtier.cli.listing import first_number
from courtier.cli.options import add_output, check_format, dump


def configure(verb: str, parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: courtier logs -f 12"
    add_output(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job has ended")
    parser.add_argument("-n", "--tail", type=int, metavar="N", help="the last N lines")
    parser.add_argument("--stderr", action="store_true", help="only stderr, on stdout")
    parser.add_argument("--attempt", type=int, help="of an earlier attempt")
    parser.add_argument("job", metavar="JOB")


def execute(verb: str, parser: argparse.ArgumentParser, argv: list[str]) -> int:
    arguments = parser.parse_args(argv)
    check_format(arguments)
    for name in ("tail", "attempt"):
        value = getattr(arguments, name)
        if value is not None and value < (0 if name == "tail" else 1):
            raise Failure("usage", f"--{name} {value} is too small", 2)
    client = Client()
    number = first_number(client, arguments.job)
    wanted: list[tuple[str, BinaryIO]] = [("stdout", sys.stdout.buffer), ("stderr", sys.stderr.buffer)]
    if arguments.stderr:
        wanted = [("stderr", sys.stdout.buffer)]
    query = {"tail_lines": arguments.tail, "attempt": arguments.attempt}
    if not arguments.follow and arguments.format == "json":
        found = {stream: b"".join(client.stream(_path(number), stream=stream, **query)) for stream, _ in wanted}
        dump({"version": 1, "job": number, **{name: data.decode("utf-8", "replace") for name, data in found.items()}})
        return 0
    if not arguments.follow:
        for stream, out in wanted:
            _copy(client, number, stream, out, query, as_json=False)
        return 0
    query["follow"] = 1
    # An unknown job or attempt has to be told before two streams are opened.
    client.raw("GET", f"/v1/jobs/{number}")
    threads = [
        threading.Thread(
            target=_copy,
            args=(Client(client.home), number, stream, out, query),
            kwargs={"as_json": arguments.format == "json"},
            daemon=True,
        )
        for stream, out in wanted
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


def _path(number: int) -> str:
    return f"/v1/jobs/{number}/logs"


def _copy(client: Client, number: int, stream: str, out: BinaryIO, query: dict[str, Any], *, as_json: bool) -> None:
    # A character may lie across two pieces.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in client.stream(_path(number), stream=stream, **query):
        if as_json:
            document = {"version": 1, "job": number, "stream": stream, "text": decoder.decode(piece)}
            sys.stdout.buffer.write(json.dumps(document).encode() + b"\n")
            sys.stdout.buffer.flush()
        else:
            out.write(piece)
            out.flush()
