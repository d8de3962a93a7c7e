"""`courtier VERB ...`: finds the verb, builds only its parser, turns every failure into a sentence and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage or never possible, 3 no broker, 4 not allowed, 5 no such object.
"""

import argparse
import importlib
import json
import os
import sys

from courtier import __version__
from courtier.cli.failure import OWN_FAILURE, Failure, Parser

# verb -> (module, what it does). The order is the order of the help.
VERBS: dict[str, tuple[str, str]] = {
    "submit": ("submit", "queue a job and return"),
    "run": ("run", "run a command in the foreground, with its exit code"),
    "shell": ("run", "an interactive shell on GPUs"),
    "ps": ("listing", "jobs that wait or run"),
    "queue": ("listing", "the same as ps"),
    "show": ("listing", "one job in full"),
    "why": ("listing", "why a job waits"),
    "history": ("listing", "jobs that have ended"),
    "events": ("listing", "what happened, in order"),
    "gpus": ("listing", "GPUs: who has them, how full they are"),
    "logs": ("logs", "a job's output"),
    "attach": ("run", "watch a running job's output live"),
    "cancel": ("change", "end jobs, or send them a signal"),
    "hold": ("change", "keep waiting jobs from starting"),
    "release": ("change", "end a hold"),
    "set": ("change", "change a job: priority=5 time=2h"),
    "requeue": ("change", "run a job again"),
    "wait": ("wait", "wait for jobs, with their exit code"),
    "up": ("box", "start the broker of this machine"),
    "down": ("box", "stop the broker; jobs go on"),
    "doctor": ("box", "what is wrong here and what to do"),
    "sim": ("simulate", "placement policies on recorded load"),
    "policy": ("simulate", "placement policies and what they weigh"),
    "drill": ("drill", "make trouble on a simulated GPU"),
    "completion": ("completion", "completion for bash, zsh or fish"),
    "version": ("box", "this version"),
}
# Verbs whose exit code is the job's own: Courtier's failures there are 125.
JOB_CODE_VERBS = frozenset({"run", "shell", "wait"})


def overview() -> str:
    lines = ["courtier VERB [options]   GPU jobs on this machine: queued, placed, watched, explained", ""]
    lines += [f"  {verb:<11} {text}" for verb, (_, text) in VERBS.items()]
    lines += ["", "courtier VERB --help says more. Examples:", "  courtier up --simulate 8xA100-80GB --detach"]
    lines += ["  courtier submit --gpus 2 --time 4h -J train -- python train.py", "  courtier ps"]
    return "\n".join(lines) + "\n"


def output_format(argv: list[str]) -> str | None:
    """The value of -o, looked up without a parser: an error in the arguments has to be told in it too."""
    for place, word in enumerate(argv):
        if word == "--":
            return None
        if word == "-o" and place + 1 < len(argv):
            return argv[place + 1]
        if word.startswith("-o") and len(word) > 2 and not word.startswith("-o-"):
            return word[2:].lstrip("=")
    return None


def complain(error: dict[str, object], argv: list[str], verb: str) -> int:
    """The error on stderr, and as a document on stdout where JSON was asked for; the exit code."""
    sys.stdout.flush()
    sys.stderr.write(f"courtier: {error['text']}\n".encode("utf-8", "replace").decode())
    if output_format(argv) == "json":
        print(json.dumps({"version": 1, "error": error}))
    return OWN_FAILURE if verb in JOB_CODE_VERBS else int(str(error["exit_code"]))


def dispatch(verb: str, argv: list[str]) -> int:
    """Runs one verb. Raises Failure and the client's errors."""
    module_name, text = VERBS[verb]
    module = importlib.import_module(f"courtier.cli.{module_name}")
    parser = Parser(
        prog=f"courtier {verb}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.configure(verb, parser)
    return int(module.execute(verb, parser, argv))


def unknown_verb(verb: str) -> Failure:
    import difflib

    near = difflib.get_close_matches(verb, VERBS, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return Failure("usage", f"no verb {verb!r}.{hint} courtier --help lists them", 2)


def main(argv: list[str] | None = None) -> int:
    """The whole command; returns its exit code."""
    from courtier.api.client import NoBroker, RequestRefused

    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(overview())
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"courtier {__version__}")
        return 0
    verb, rest = argv[0], argv[1:]
    try:
        if verb not in VERBS:
            raise unknown_verb(verb)
        code = dispatch(verb, rest)
        sys.stdout.flush()
        return code
    except Failure as failure:
        return complain(failure.error, rest, verb)
    except RequestRefused as refused:
        return complain({"exit_code": 1, **refused.error}, rest, verb)
    except NoBroker as missing:
        return complain({"code": "no_broker", "text": str(missing), "exit_code": 3}, rest, verb)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
