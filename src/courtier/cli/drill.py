"""`courtier drill`: trouble on a simulated GPU, to see what happens then. Real GPUs are never touched: exit code 4."""

import argparse
import re
import sys
from collections.abc import Callable
from typing import Any

from courtier.api.client import Client
from courtier.cli.failure import Failure
from courtier.cli.options import add_output, check_format
from courtier.domain import units

EPILOG = """what can be drilled:
  lost                  the GPU falls off the bus
  xid N                 the driver reports Xid N
  hang SECONDS          the driver does not answer for so long
  external SIZE         somebody outside Courtier uses so much of its memory (0 ends it)
  overuse SIZE          its jobs use so much more than they declared
  hot CELSIUS           so hot is it
  memory-not-supported  the driver does not say how much memory is used
  driver-mismatch       the driver was replaced while it ran (all GPUs)
  restore               all is well again; ends a quarantine too

examples:
  courtier drill gpu2 lost
  courtier drill gpu0 external 20G
  courtier drill gpu0 restore"""

_GPU = re.compile(r"^(?:gpu)?(\d{1,6})$", re.IGNORECASE)


def _seconds(text: str) -> int:
    return units.parse_grace(text) // 1000


def _size(text: str) -> int:
    return 0 if text == "0" else units.parse_size(text)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise ValueError(f"{text!r} is not a number")
    return int(text)


# kind -> how its value is read, None for those without one
VALUES: dict[str, Callable[[str], int] | None] = {
    "lost": None,
    "xid": _number,
    "hang": _seconds,
    "external": _size,
    "overuse": _size,
    "hot": _number,
    "memory-not-supported": None,
    "driver-mismatch": None,
    "restore": None,
}


def configure(verb: str, parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_output(parser)
    parser.add_argument("gpu", metavar="GPU", help="gpu2, or 2: its index")
    parser.add_argument("kind", metavar="WHAT", help=", ".join(VALUES))
    parser.add_argument("value", nargs="?", metavar="VALUE")


def gpu_index(word: str) -> int:
    """gpu2 or 2. Raises Failure."""
    match = _GPU.match(word)
    if match is None:
        raise Failure("usage", f"{word[:80]!r} is not a GPU: write gpu2, the index that courtier gpus shows", 2)
    return int(match.group(1))


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    kind, value = arguments.kind, arguments.value
    if kind not in VALUES:
        raise Failure("usage", f"no drill {kind!r}: there are {', '.join(VALUES)}", 2)
    parse = VALUES[kind]
    if (parse is None) is not (value is None):
        wants = "takes no value" if parse is None else "needs a value"
        raise Failure("usage", f"drill {kind} {wants}: courtier drill --help", 2)
    if parse is None:
        return {"kind": kind}
    try:
        return {"kind": kind, "value": parse(value)}
    except ValueError as error:
        raise Failure("usage", f"drill {kind}: {error}", 2) from error


def execute(verb: str, parser: argparse.ArgumentParser, argv: list[str]) -> int:
    arguments = parser.parse_args(argv)
    check_format(arguments)
    index, body = gpu_index(arguments.gpu), _body(arguments)
    document = Client().raw("POST", f"/v1/gpus/{index}/drill", body)
    if arguments.format == "json":
        sys.stdout.buffer.write(document + b"\n")
    elif not arguments.quiet:
        print(
            f"GPU {index}: {arguments.kind}{' ' + arguments.value if arguments.value else ''}. courtier gpus shows it"
        )
    return 0
