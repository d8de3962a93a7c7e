"""Starts and ends a worker process. Ending never waits: a process stuck in the driver may not die before a reboot."""

import os
import signal
import socket
import subprocess
import sys


class WorkerProcess:
    """A worker and the socket to it. Raises OSError where it cannot be started."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            # -P: the daemon's working folder is no place to import from.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "courtier.adapters.nvml.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.connection = ours

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Sends SIGKILL and closes the socket; `gone` says whether it died."""
        self.connection.close()
        if self._process.poll() is None:
            try:
                os.kill(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def gone(self) -> bool:
        """Whether it has ended; also takes its exit status, so that no zombie stays."""
        return self._process.poll() is not None

    def forget(self) -> None:
        """Nobody waits for it any more: the kernel ends it when it can."""
        self._process.returncode = 0

    def gone_within(self, seconds: float) -> bool:
        """Waits for its end, at most so long. For places outside an event loop."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True
