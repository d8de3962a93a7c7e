"""Other people on this machine: runs a function as one of them, in a process of its own. Needs root."""

import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

ALICE, MALLORY = 20_001, 20_002


class Failed(Exception):
    """What went wrong in the other process."""


def as_user(uid: int, action: Callable[[], Any]) -> Any:
    """The action's answer; an exception that it raised is raised here as Failed, with its name first."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            os.setgroups([uid])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            try:
                answer = (True, action())
            except BaseException as error:
                answer = (False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(answer, pipe)
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        content = pipe.read()
    os.waitpid(pid, 0)
    if not content:
        raise Failed("it died")
    good, answer = pickle.loads(content)
    if not good:
        raise Failed(answer)
    return answer
