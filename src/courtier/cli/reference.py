"""The reference pages, made from the code by `make reference`: verbs, settings, reasons, events, models, the API.

A page that differs from what is made here fails a test, so that nothing exists without its entry.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from courtier.api import schema
from courtier.api.openapi import OPERATIONS
from courtier.cli.failure import Parser
from courtier.cli.main import VERBS
from courtier.daemon.settings import SETTINGS, WORD_SETTINGS
from courtier.domain.lifecycle import CHANGES, STATE_CODES
from courtier.domain.models import MODELS
from courtier.domain.reasons import REASONS
from courtier.engine.events import EVENT_KINDS

EXIT_CODES = (
    "0 done; 1 the operation failed; 2 wrong usage, or a request that can never be met; 3 no broker; 4 not allowed; "
    "5 no such object. `run`, `shell` and `wait` end with the job's own code (128+n after signal n, 124 on its time "
    "limit, 127 not found, 126 not executable); Courtier's own failures there are 125, with the code above in "
    "`error.exit_code`."
)


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _verb(verb: str) -> str:
    parser = Parser(prog=f"courtier {verb}", formatter_class=argparse.RawDescriptionHelpFormatter)
    importlib.import_module(f"courtier.cli.{VERBS[verb][0]}").configure(verb, parser)
    rows = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        rows.append((f"`{name}`", (action.help or "").replace("%%", "%")))
    return (
        f"## {verb}\n\n{VERBS[verb][1]}\n\n    "
        + (parser.epilog or "").replace("\n", "\n    ")
        + "\n\n"
        + _table(("flag", "meaning"), rows)
    )


def _verbs_page() -> str:
    return f"# Verbs\n\n{EXIT_CODES}\n\n" + "\n".join(_verb(verb) for verb in VERBS)


def _settings_page() -> str:
    every: dict[str, tuple[int | str, str]] = {**SETTINGS, **WORD_SETTINGS}
    rows = [(f"`{name}`", str(default) or "(empty)", words) for name, (default, words) in every.items()]
    return (
        "# Settings\n\nNone is needed. `settings.toml` in the home (`name = number`), or "
        "`courtier up --set name=number`. "
        "Durations are in milliseconds, sizes in bytes.\n\n" + _table(("setting", "default", "what it is"), rows)
    )


def _reasons_page() -> str:
    rows = [(f"`{code}`", kind.text, kind.slurm, "yes" if kind.impossible else "") for code, kind in REASONS.items()]
    return (
        "# Reasons\n\nWhy a job waits, was refused or ended. The numbers of a sentence are fields beside `code` and "
        "`text`. A reason that can never change is refused at submit with exit code 2.\n\n"
        + _table(("code", "sentence", "Slurm's word", "never possible"), rows)
    )


def _events_page() -> str:
    events = [(f"`{kind}`", words) for kind, words in EVENT_KINDS.items()]
    states = [
        (f"`{state.value}`", code, ", ".join(f"`{after.value}`" for after in sorted(CHANGES[state])))
        for state, code in STATE_CODES.items()
    ]
    return (
        "# States and events\n\n"
        + _table(("state", "code", "goes to"), states)
        + "\nEvents have `sequence`, `at_ms`, `kind`, `job`, and the fields of the job's row that they changed.\n\n"
        + _table(("event", "what happened"), events)
    )


def _models_page() -> str:
    rows = [
        (
            f"`{name}`",
            str(model.memory_bytes_total >> 20),
            str(model.memory_bytes_reserved >> 20),
            "NVLink" if model.nvlink else "PCIe",
        )
        for name, model in MODELS.items()
    ]
    return "# Models of simulated boxes\n\n" + _table(("model", "memory MiB", "kept by the driver MiB", "links"), rows)


def _api_page() -> str:
    operations = [(f"`{method.upper()} {path}`", words) for method, path, words, *_ in OPERATIONS]
    text = (
        "# API\n\nHTTP on the unix socket `broker.sock` of the home; `/openapi.json` is the machine-readable form.\n\n"
        + _table(("request", "what it does"), operations)
    )
    for name, kind in sorted(vars(schema).items()):
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)) or kind is msgspec.Struct:
            continue
        rows: list[tuple[str, ...]] = [
            (f"`{field.encode_name}`", f"`{_type_words(field.type)}`") for field in msgspec.structs.fields(kind)
        ]
        words = " ".join((kind.__doc__ or "").split())
        text += f"\n## {name}\n\n{words}\n\n" + _table(("field", "type"), rows)
    return text


def _type_words(kind: Any) -> str:
    return (
        (kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind))
        .replace("courtier.api.schema.", "")
        .replace("typing.", "")
    )


def pages() -> dict[str, str]:
    """File name in docs/reference -> its text."""
    return {
        "verbs.md": _verbs_page(),
        "settings.md": _settings_page(),
        "reasons.md": _reasons_page(),
        "events.md": _events_page(),
        "models.md": _models_page(),
        "api.md": _api_page(),
    }


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
