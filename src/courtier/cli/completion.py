"""`courtier completion SHELL`: a script made from the verbs and their parsers, so that it cannot lag behind them."""

import argparse
import importlib

from courtier.cli.failure import Parser
from courtier.cli.main import VERBS
from courtier.cli.options import add_output, check_format, dump

SHELLS = ("bash", "zsh", "fish")


def configure(verb: str, parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: source <(courtier completion bash)"
    add_output(parser, formats=("table", "json"))
    parser.add_argument("shell", choices=SHELLS)


def execute(verb: str, parser: argparse.ArgumentParser, argv: list[str]) -> int:
    arguments = parser.parse_args(argv)
    check_format(arguments)
    flags = {name: verb_flags(name) for name in VERBS}
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell](flags)
    if arguments.format == "json":
        dump({"version": 1, "shell": arguments.shell, "script": script})
    else:
        print(script)
    return 0


def verb_flags(verb: str) -> list[str]:
    """Every flag that a verb's help shows."""
    parser = Parser(prog=f"courtier {verb}")
    importlib.import_module(f"courtier.cli.{VERBS[verb][0]}").configure(verb, parser)
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    return sorted(flag for action in actions for flag in action.option_strings)


def _bash(flags: dict[str, list[str]]) -> str:
    cases = "\n".join(f"    {verb}) words='{' '.join(found)}' ;;" for verb, found in flags.items())
    return f"""_courtier() {{
  local words verb="${{COMP_WORDS[1]}}"
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{" ".join(flags)} --help --version' -- "$2")); return
  fi
  case "$verb" in
{cases}
  esac
  case "$2" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$2")) ;;
    *) COMPREPLY=($(compgen -W "$(courtier ps -q 2>/dev/null)" -- "$2") $(compgen -f -- "$2")) ;;
  esac
}}
complete -F _courtier courtier"""


def _zsh(flags: dict[str, list[str]]) -> str:
    return "autoload -U +X bashcompinit && bashcompinit\n" + _bash(flags)


def _fish(flags: dict[str, list[str]]) -> str:
    lines = [f"complete -c courtier -n __fish_use_subcommand -f -a {verb} -d '{VERBS[verb][1]}'" for verb in flags]
    for verb, found in flags.items():
        for flag in found:
            option = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            lines.append(f"complete -c courtier -n '__fish_seen_subcommand_from {verb}' {option}")
    return "\n".join(lines)
