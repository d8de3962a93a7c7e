"""A small supervisor for tests: runs one command in a fence and prints how it ended, as one JSON line.

Reads {"argv", "environment", "directory", "user", "nodes", "terminal", "stdout", "term_when"} (bytes as latin-1).
"""

import contextlib
import json
import os
import pty
import signal
import sys
import time

from courtier.adapters.process.fence import FenceError, FenceSpec, FenceStart, Node, find_bwrap
from courtier.adapters.process.fence_entry import fork_fenced_leader
from courtier.adapters.process.identity import boot_id
from courtier.adapters.process.leader import PR_SET_CHILD_SUBREAPER, Command, prctl
from courtier.adapters.process.tree import descendants, signal_all
from courtier.engine.ports import Owner


def main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    terminal = pty.openpty() if job["terminal"] else None
    path = os.ttyname(terminal[1]) if terminal else None
    started = time.perf_counter()
    try:
        fence = FenceStart(FenceSpec(find_bwrap() or "", tuple(Node(*node) for node in job["nodes"]), path)).stands()
    except FenceError as error:
        sys.stdout.write(json.dumps({"refused": str(error)}))
        return
    out = os.open(job["stdout"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open("/dev/null", os.O_RDWR)
    ends = (terminal[1],) * 3 if terminal else (null, out, out)
    command = Command(
        tuple(word.encode("latin-1") for word in job["argv"]),
        {name.encode("latin-1"): value.encode("latin-1") for name, value in job["environment"]},
        job["directory"].encode(),
        0o022,
        terminal is not None,
    )
    user = Owner(*job["user"], ()) if job["user"] else None
    child = fork_fenced_leader(command, *ends, lambda _pid: None, fence, user)
    entered = time.perf_counter()
    if terminal:
        os.close(terminal[1])
    os.write(child.go, b"!")
    os.close(child.go)
    if job["term_when"]:
        while not os.path.exists(job["term_when"]):
            time.sleep(0.005)
        signal_all(descendants(os.getpid(), boot_id()), signal.SIGTERM, boot_id())
    if terminal:
        with contextlib.suppress(OSError):
            while piece := os.read(terminal[0], 4096):
                os.write(out, piece)
    _, status = os.waitpid(child.pid, 0)
    failure = os.read(child.failure, 4096)
    left = not fence.empty()
    while not fence.empty():
        time.sleep(0.005)
    fence.end()
    reaped = 0
    with contextlib.suppress(ChildProcessError):
        while os.wait():
            reaped += 1
    result = {
        "code": os.waitstatus_to_exitcode(status),
        "failure": json.loads(failure) if failure else None,
        "left": left,
        "reaped": reaped,
        "start_ms": (entered - started) * 1000,
    }
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
