"""A job's fence as its supervisor handles it: begun early, entered by the job, ended with it. Without one, nothing.

Must never be left standing: every way out of a supervisor passes `end` or `discard`.
"""

from collections.abc import Callable

from courtier.adapters.process.fence import Fence, FenceError, FenceSpec, FenceStart, find_bwrap, gpu_nodes
from courtier.adapters.process.fence_entry import fork_fenced_leader
from courtier.adapters.process.leader import Child, Command, fork_leader
from courtier.engine.ports import Launch


class Enclosure:
    """The fence of one attempt, or none where its launch asks for none."""

    def __init__(self, launch: Launch) -> None:
        self._fenced = launch.fenced
        self._begun: FenceStart | None = None
        self._fence: Fence | None = None

    def begin(self, terminal: str | None = None) -> None:
        """Lets bubblewrap work while the caller does other things. Raises FenceError."""
        if self._fenced is None or self._begun is not None:
            return
        bwrap = find_bwrap()
        if bwrap is None:
            raise FenceError("bubblewrap is not installed any more")
        nodes = gpu_nodes(self._fenced.minors, simulated=self._fenced.simulated)
        self._begun = FenceStart(FenceSpec(bwrap, nodes, terminal))

    def fork(self, command: Command, stdio: tuple[int, int, int], join: Callable[[int], None]) -> Child:
        """The job's waiting process, inside. Raises FenceError: then nothing of the job has run."""
        stdin, stdout, stderr = stdio
        begun, self._begun = self._begun, None
        if begun is None:
            return fork_leader(command, stdin, stdout, stderr, join)
        self._fence = begun.stands()
        return fork_fenced_leader(command, stdin, stdout, stderr, join, self._fence, command.owner)

    @property
    def pids(self) -> frozenset[int]:
        """Processes that are the fence's and not the job's."""
        return self._fence.pids if self._fence is not None else frozenset()

    @property
    def stands(self) -> bool:
        return self._fence is not None and not self._fence.ended

    @property
    def ended(self) -> bool:
        """Whether there was a fence, and it was ended: only its own few processes are left to be reaped."""
        return self._fence is not None and self._fence.ended

    def end_if_empty(self) -> bool:
        """Once the job's own process has gone: ends a fence that nobody is in; whether nobody is left."""
        if self._fence is not None and not self._fence.ended and self._fence.empty():
            self._fence.end()
        return self.ended

    def end(self) -> None:
        """Kills everything inside at once."""
        if self._fence is not None:
            self._fence.end()

    def discard(self) -> None:
        """Of a job that never started."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.discard()
        self.end()
