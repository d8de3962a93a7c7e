"""How a verb says that it failed. One class wherever the command was started from, so it lives apart from `main`."""

import argparse
from typing import NoReturn

# Exit code of Courtier's own failures in verbs that otherwise end with a job's code.
OWN_FAILURE = 125


class Failure(Exception):
    """Something to tell the user: code, sentence, exit code, and the numbers of the case."""

    def __init__(self, code: str, text: str, exit_code: int, **numbers: object) -> None:
        super().__init__(text)
        self.error = {"code": code, "text": text, "exit_code": exit_code, **numbers}


class Parser(argparse.ArgumentParser):
    """argparse, with its complaint as a Failure: one way for errors to get out."""

    def error(self, message: str) -> NoReturn:
        raise Failure("usage", f"{message} (courtier {self.prog.split()[-1]} --help)", 2)
