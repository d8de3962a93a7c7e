"""Verbs about the machine: up, down, doctor, version."""

import argparse
import json
import sys
import time

from courtier import __version__
from courtier.api.client import Client, NoBroker, own_home
from courtier.cli import render
from courtier.cli.failure import Failure
from courtier.cli.options import add_output, check_format

EXAMPLES = {
    "up": "courtier up --simulate 8xA100-80GB --detach",
    "down": "courtier down --cancel-jobs",
    "doctor": "courtier doctor",
    "version": "courtier version -o json",
}
DOWN_SECONDS_MAX = 60.0


def configure(verb: str, parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"example: {EXAMPLES[verb]}"
    add_output(parser)
    if verb == "up":
        parser.add_argument("--simulate", metavar="BOX", help="GPUs that are not there: 8xA100-80GB, 4xA100-40GB+2xL4")
        parser.add_argument("--detach", "-d", action="store_true", help="return when the broker answers")
        parser.add_argument("--listen", metavar="HOST:PORT", help="answer on TCP too, with the token in the home")
        parser.add_argument("--watch-only", action="store_true", help="read and attribute GPU use, schedule nothing")
        parser.add_argument("--install-service", action="store_true", help="start at boot, under systemd (root)")
        parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting")
    elif verb == "down":
        parser.add_argument("--cancel-jobs", action="store_true", help="cancel all jobs first, and wait for them")


def execute(verb: str, parser: argparse.ArgumentParser, argv: list[str]) -> int:
    arguments = parser.parse_args(argv)
    check_format(arguments)
    if verb == "up":
        return _up(arguments)
    if verb == "down":
        return _down(arguments)
    if verb == "doctor":
        return _doctor(arguments)
    print(json.dumps({"version": 1, "courtier": __version__}) if arguments.format == "json" else __version__)
    return 0


def _up(arguments: argparse.Namespace) -> int:
    from courtier.daemon.main import up

    settings = {}
    for word in arguments.set:
        if "=" not in word:
            raise Failure("usage", f"--set: {word!r} is not NAME=VALUE", 2)
        name, _, value = word.partition("=")
        settings[name] = value
    if arguments.watch_only:
        settings["watch_only"] = "1"
    home = own_home()
    if arguments.install_service:
        from courtier.daemon.service import install_service

        return install_service(home, arguments.simulate, arguments.listen, settings)
    code = up(str(home), arguments.simulate, arguments.detach, arguments.listen, settings)
    if code == 0 and arguments.detach:
        if arguments.format == "json":
            print(json.dumps({**Client(home).health(), "version": 1}))
        elif not arguments.quiet:
            print(f"The broker answers at {home}")
    return code


def _down(arguments: argparse.Namespace) -> int:
    client = Client()
    client.raw("POST", "/v1/shutdown", {"cancel_jobs": arguments.cancel_jobs}, timeout=None)
    deadline = time.monotonic() + DOWN_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            client.health()
        except NoBroker:
            if not (client.home / "broker.sock").exists():
                if arguments.format == "json":
                    print(json.dumps({"version": 1, "status": "stopped"}))
                elif not arguments.quiet:
                    print("Stopped." if arguments.cancel_jobs else "Stopped; jobs go on.")
                return 0
        time.sleep(0.02)
    raise Failure("down_timeout", f"the broker at {client.home} did not end in time", 1)


def _doctor(arguments: argparse.Namespace) -> int:
    document = Client().raw("GET", "/v1/doctor")
    checks = json.loads(document)["checks"]
    if arguments.format == "json":
        sys.stdout.buffer.write(document + b"\n")
    else:
        for check in checks:
            render.write(f"{check['verdict']:<5} {check['name']:<11} {check['text']}\n")
            if check["advice"]:
                render.write(f"{'':<17} -> {check['advice']}\n")
    return 1 if any(check["verdict"] == "fail" for check in checks) else 0
