"""`courtier sim` and `courtier policy`: placement on recorded load, and what policies weigh. Asks no broker."""

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Any

from courtier.cli.failure import Failure
from courtier.cli.options import add_output, check_format, dump

EXAMPLES = {
    "sim": "courtier sim openb --data traces --trace default --seed 42 --policy courtier -o json",
    "policy": "courtier policy show courtier",
}


def configure(verb: str, parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"example: {EXAMPLES[verb]}"
    add_output(parser, formats=("table", "json"))
    if verb == "policy":
        parser.add_argument("action", choices=("list", "show", "check"))
        parser.add_argument("name", nargs="?", metavar="NAME|FILE", help="a policy; for check, a file (JSON)")
        return
    parser.add_argument("what", choices=("openb",), help="openb: the public trace of GPU requests")
    parser.add_argument("--data", required=True, metavar="DIR", help="the folder of the trace")
    parser.add_argument("--trace", default="default", help="which list of requests")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--policy", default="courtier", metavar="NAME|FILE")
    parser.add_argument("--mix", choices=("known", "learned"), default="known", help="what the policy knows of demand")
    parser.add_argument("--decisions", metavar="FILE", help="write every decision (CSV)")
    parser.add_argument("--engine", choices=("fast", "numpy"), help="compiled (needs numba) or numpy; same decisions")


def execute(verb: str, parser: argparse.ArgumentParser, argv: list[str]) -> int:
    arguments = parser.parse_args(argv)
    check_format(arguments)
    return _policy(arguments) if verb == "policy" else _openb(arguments)


def _kernels(engine: str | None) -> Any:
    if engine == "numpy":
        return None
    try:
        from courtier.placement import kernels
    except ImportError as error:
        if engine == "fast":
            raise Failure(
                "numba_missing", "the compiled engine needs numba: pip install 'courtier[fast]'", 1
            ) from error
        return None
    return kernels


def _openb(arguments: argparse.Namespace) -> int:
    from courtier.sim import openb

    policy = read_policy(arguments.policy)
    try:
        trace = openb.load_trace(Path(arguments.data), arguments.trace, arguments.seed)
    except openb.TraceRefused as error:
        raise Failure("trace_unreadable", str(error), 2) from error
    kernels = _kernels(arguments.engine)
    batch, seconds = openb.simulate(
        trace, policy, seed=arguments.seed, learned=arguments.mix == "learned", kernels=kernels
    )
    found = openb.result(trace, batch, seconds)
    if arguments.decisions is not None:
        try:
            with open(arguments.decisions, "w", newline="", encoding="ascii") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(["order", "pod", "node", "gpus"])
                writer.writerows(openb.decision_rows(trace, batch))
        except OSError as error:
            raise Failure("decisions_unwritable", f"{arguments.decisions}: {error.strerror}", 1) from error
    given = {"trace": arguments.trace, "seed": arguments.seed, "policy": policy.name, "mix": arguments.mix}
    if arguments.format == "json":
        dump({"version": 1, "simulation": {**given, **found}})
        return 0
    for name, value in {**given, **found}.items():
        print(f"{name:<28} {value}")
    return 0


def read_policy(word: str) -> Any:
    """A policy by name, or from a JSON file of weights. Raises Failure."""
    from courtier.placement.weights import POLICIES, weighted

    if word in POLICIES:
        return POLICIES[word]
    path = Path(word)
    if not path.exists():
        raise Failure("policy_unknown", f"no policy {word}: there are {', '.join(POLICIES)}, or a file", 2)
    try:
        content = json.loads(path.read_text())
        weights = content["weights_milli"]
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in weights.values()):
            raise ValueError("weights are whole numbers")
        return weighted(str(content.get("name", path.stem)), str(content.get("why", "")), **weights)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        text = f'{path}: not a policy ({error}): write {{"name": ..., "why": ..., "weights_milli": {{SCORER: NUMBER}}}}'
        raise Failure("policy_unreadable", text, 2) from error


def _policy(arguments: argparse.Namespace) -> int:
    from courtier.placement.weights import POLICIES, SCORERS, WEIGHT_NAMES

    if arguments.action == "list":
        if arguments.format == "json":
            dump({"version": 1, "policies": [_document(policy) for policy in POLICIES.values()]})
        else:
            sys.stdout.write("".join(f"{policy.name:<12} {policy.why}\n" for policy in POLICIES.values()))
        return 0
    if arguments.name is None:
        raise Failure("usage", f"policy {arguments.action} needs a name: {', '.join(POLICIES)}", 2)
    policy = read_policy(arguments.name)
    if arguments.format == "json":
        dump({"version": 1, "policy": _document(policy)})
        return 0
    print(f"{policy.name}: {policy.why}")
    if policy.rule is not None:
        print(f"  decides by the published integer score {policy.rule}")
        return 0
    for name, weight in zip(WEIGHT_NAMES, policy.weights_milli, strict=True):
        if weight:
            print(f"  {name:<14} {weight / 1000:>9.3f}  {SCORERS[name]}")
    return 0


def _document(policy: Any) -> dict[str, Any]:
    from courtier.placement.weights import SCORERS, WEIGHT_NAMES

    weights = [
        {"scorer": name, "weight_milli": weight, "why": SCORERS[name]}
        for name, weight in zip(WEIGHT_NAMES, policy.weights_milli, strict=True)
        if weight
    ]
    return {"name": policy.name, "why": policy.why, "rule": policy.rule, "scorers": weights}
