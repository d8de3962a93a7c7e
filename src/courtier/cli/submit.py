"""`courtier submit`: a command or a script into the queue. Prints the number, or the document."""

import argparse
import os
import shutil
import sys
import time
from typing import Any

from courtier.api.client import Client
from courtier.cli.body import environment, submit_body
from courtier.cli.failure import Failure
from courtier.cli.flags import add_job_flags, ignored_given
from courtier.cli.options import add_output, check_format
from courtier.cli.script import merge, script_flags

EPILOG = """examples:
  courtier submit --gpus 2 --time 4h -J train -- python train.py --epochs 3
  courtier submit --gpu-mem 18G --class inference -- python serve.py
  courtier submit job.sh          with #SBATCH or #courtier lines"""


def configure(verb: str, parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_output(parser)
    add_job_flags(parser)
    add_local_flags(parser)
    parser.add_argument("--dry-run", "--test-only", action="store_true", help="check, store nothing")
    parser.add_argument("--wrap", help="a command line for the shell")
    parser.add_argument("--wait", action="store_true", help="wait for the end, with the job's exit code")
    parser.add_argument("--parsable", action="store_true", help="the same as -q")


def add_local_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that only the client reads."""
    parser.add_argument("--env", "-e", action="append", metavar="A=1", help="set, or take over, a variable")
    parser.add_argument("--env-file", help="variables, one a line")
    parser.add_argument("--keep-secret", action="append", metavar="NAME", help="pass this secret-looking variable on")
    parser.add_argument("--shell", action="store_true", help="run the command through /bin/sh -c")
    parser.add_argument("-v", "--verbose", action="store_true", help="say what was left out")


def split_command(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """Flags, and what follows `--` (None without one): that is passed byte for byte."""
    if "--" not in argv:
        return argv, None
    place = argv.index("--")
    return argv[:place], argv[place + 1 :]


def command_words(words: list[str], *, shell: bool) -> list[bytes]:
    """argv of the job. One single argument that names no program is a line for the shell."""
    if not words:
        raise Failure("usage", "no command after --", 2)
    line = len(words) == 1 and shutil.which(words[0]) is None and any(c in words[0] for c in " ;|&<>$\n")
    if shell or line:
        return [b"/bin/sh", b"-c", os.fsencode(" ".join(words))]
    return [os.fsencode(word) for word in words]


def put_command(body: dict[str, Any], words: list[bytes]) -> None:
    """The command into the body: as text, or as base64 where a word is not UTF-8."""
    import base64

    try:
        body["command"] = [word.decode() for word in words]
    except UnicodeDecodeError:
        body["command_base64"] = [base64.b64encode(word).decode() for word in words]


def put_environment(body: dict[str, Any], arguments: argparse.Namespace) -> None:
    pairs, left_out = environment(arguments, os.environb.items())
    body["environment_base64"] = pairs
    mask = os.umask(0o077)
    os.umask(mask)
    body["umask"] = mask
    if left_out and arguments.verbose:
        names = ", ".join(os.fsdecode(name) for name in left_out)
        sys.stderr.write(f"courtier: not passed on (they look like secrets, --keep-secret NAME does): {names}\n")


def _read_script(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Failure("usage", f"{path}: {error.strerror}; a command goes after --", 2) from error


def build(arguments: argparse.Namespace, command: list[str] | None) -> tuple[dict[str, Any], list[str]]:
    """The body, and the flags that were ignored."""
    import base64

    ignored = ignored_given(arguments)
    script = None
    if command is None and arguments.wrap is not None:
        command = ["/bin/sh", "-c", arguments.wrap]
    elif command is None:
        script = _read_script(arguments.script[0])
        flags, unknown = script_flags(script)
        arguments = merge(arguments, flags)
        ignored += unknown
    body = submit_body(arguments, now_ms=time.time_ns() // 1_000_000, directory=os.getcwdb())
    if script is not None:
        body["script_base64"] = base64.b64encode(script).decode()
        body["script_arguments"] = arguments.script[1:]
        body.setdefault("name", os.path.basename(arguments.script[0]))
    else:
        put_command(body, command_words(command or [], shell=arguments.shell))
    put_environment(body, arguments)
    return body, ignored


def warn_ignored(ignored: list[str]) -> None:
    if ignored:
        names = ", ".join(dict.fromkeys(ignored))
        sys.stderr.write(f"courtier: ignored, since it means nothing here: {names}\n")


def execute(verb: str, parser: argparse.ArgumentParser, argv: list[str]) -> int:
    flags, command = split_command(argv)
    if command is None and not any(word.split("=")[0] == "--wrap" for word in flags):
        # All that follows the script's name is the script's own, flags too.
        parser.add_argument("script", nargs=argparse.PARSER, metavar="SCRIPT", help="a job script and its arguments")
    arguments = parser.parse_args(flags)
    check_format(arguments)
    body, ignored = build(arguments, command)
    if arguments.dry_run:
        body["dry_run"] = True
    warn_ignored(ignored)
    client = Client()
    document = client.raw("POST", "/v1/jobs", body)
    number = _print(document, arguments)
    if arguments.wait:
        from courtier.cli.wait import wait_for

        return wait_for(client, [number], timeout_ms=None)
    return 0


def _preview_words(job: dict[str, Any]) -> str:
    """What a dry run found."""
    allocation = job["allocation"]
    if allocation is None:
        why = job["reason"]["text"] if job["reason"] is not None else "would wait"
        return f"It can run here; now it {why}. Nothing was stored."
    gpus = ", ".join(f"{gpu['index']} ({gpu['model']})" for gpu in allocation["gpus"])
    return f"It would start now{f' on GPU {gpus}' if gpus else ''}. Nothing was stored."


def _print(document: bytes, arguments: argparse.Namespace) -> int:
    import json

    answer = json.loads(document)
    job = answer["job"]
    number: int = job["array_id"] if job["array_id"] is not None else job["id"]
    if answer.get("dry_run") and arguments.format != "json":
        print(_preview_words(job))
    elif arguments.quiet or arguments.parsable or arguments.format == "name":
        print(number)
    elif arguments.format == "json":
        sys.stdout.buffer.write(document + b"\n")
    else:
        what = "Known already: " if answer.get("existing") else "Submitted "
        many = f"array {number} ({len(answer['jobs'])} jobs)" if "jobs" in answer else f"job {number}"
        print(what + many)
    sys.stdout.flush()
    return number
