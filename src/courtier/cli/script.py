"""Job scripts: the #SBATCH and #courtier lines at their head, as flags. The command line wins over them.

Reads the head of a file; must never run anything of it.
"""

import argparse
import shlex

from courtier.cli.failure import Failure, Parser
from courtier.cli.flags import add_job_flags, ignored_given

MARKS = ("#SBATCH", "#courtier", "#COURTIER")


def directives(content: bytes) -> list[str]:
    """Words of all directive lines before the first line that is not a comment."""
    words: list[str] = []
    for line in content.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if not text:
            continue
        if not text.startswith("#"):
            break
        mark = next((mark for mark in MARKS if text.startswith((mark + " ", mark + "\t"))), None)
        if mark is None:
            continue
        try:
            words += shlex.split(text[len(mark) :], comments=True)
        except ValueError as error:
            raise Failure("usage", f"{text!r}: {error}", 2) from error
    return words


def script_flags(content: bytes) -> tuple[argparse.Namespace, list[str]]:
    """The flags of a script, and the words that nobody here understands."""
    parser = Parser(prog="courtier submit", add_help=False, allow_abbrev=False)
    add_job_flags(parser, script=True)
    arguments, unknown = parser.parse_known_args(directives(content))
    return arguments, ignored_given(arguments) + [word for word in unknown if word.startswith("-")]


def merge(command_line: argparse.Namespace, script: argparse.Namespace) -> argparse.Namespace:
    """Every flag of the command line that was given, else the script's."""
    merged = argparse.Namespace(**vars(command_line))
    for name, value in vars(script).items():
        if getattr(merged, name, None) is None:
            setattr(merged, name, value)
    return merged
