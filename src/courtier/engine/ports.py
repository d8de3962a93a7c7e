"""What the shells plug in. A port says what is promised; an adapter keeps the promise.

Each port has one contract suite in tests/contract that runs over the adapter and over its fake.
Ports answer with values or raise `PortError`; they decide nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from courtier.domain.attempts import AttemptKey, AttemptStatus, StopCause

if TYPE_CHECKING:
    from courtier.domain.health import Quarantine
    from courtier.domain.workloads import Job
    from courtier.engine.loop import Outcome


class PortError(Exception):
    """The outside world refused. `code` is machine-readable, the text is for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class Owner:
    """The user that a job runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fenced:
    """Device nodes of a job that is fenced in: /dev/nvidiaN for each minor N. simulated: a node that is not there may
    be missing."""

    minors: tuple[int, ...]
    simulated: bool


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything a supervisor needs, so that it never has to ask the daemon.

    key               which attempt
    argv, environment the command and its whole environment, byte for byte
    directory         working directory of the job
    stdout_path       file for stdout; stderr_path may be the same (then both are interleaved)
    append_logs       False: the files are emptied first
    log_bytes_max     cap of each log file
    time_limit_ms     from the start of the job's process; None: unlimited
    grace_ms          from TERM to KILL, for every stop and for processes left behind
    warn_signal       sent `warn_before_ms` before the time limit (Slurm's --signal); None: never
    warn_leader_only  the warning goes to the job's own process, else to the whole tree
    cpus_milli        CPU bandwidth to enforce where a cgroup can; None: do not limit
    memory_bytes      memory to enforce; None: do not limit
    interactive       the job waits for a client to attach before it starts, and is stopped when that client goes away
    terminal          the job gets a pseudo terminal (stdout and stderr are then one stream)
    umask             the submitter's
    attach_ms         an interactive job that no client came to by then is given up
    owner             whom the command runs as, and whose rights open the user's files; None: the broker's own user
    stdout_is_users   the file was named by the user; otherwise it is Courtier's own
    stderr_is_users   the same for stderr
    fenced            the devices that the command may reach, and no others; None: no fence
    """

    key: AttemptKey
    argv: tuple[bytes, ...]
    environment: tuple[tuple[bytes, bytes], ...]
    directory: bytes
    stdout_path: bytes
    stderr_path: bytes
    append_logs: bool
    log_bytes_max: int
    time_limit_ms: int | None
    grace_ms: int
    warn_signal: int | None
    warn_before_ms: int
    warn_leader_only: bool
    cpus_milli: int | None
    memory_bytes: int | None
    interactive: bool
    terminal: bool
    umask: int
    attach_ms: int = 30_000
    owner: Owner | None = None
    stdout_is_users: bool = False
    stderr_is_users: bool = False
    fenced: Fenced | None = None


class Runtime(Protocol):
    """Owns real processes through supervisors. Reports every change as an `AttemptStatus` to the
    callback it was built with; a report may come twice or late, never be the only trace."""

    def start(self, launch: Launch) -> None:
        """Asks for a supervisor; at most one ever claims a key. Raises PortError when it cannot be asked."""
        ...

    def stop(self, key: AttemptKey, cause: StopCause, *, grace_ms: int) -> None:
        """TERM to the tree, KILL after `grace_ms` (0: at once); before the start too. Repeats only shorten it."""
        ...

    def signal(self, key: AttemptKey, number: int, *, leader_only: bool) -> bool:
        """Sends one signal to the job; False when there is nothing to signal."""
        ...

    def set_time_limit(self, key: AttemptKey, time_limit_ms: int | None) -> None:
        """Changes the limit of a running attempt, counted from its start."""
        ...

    def revoke(self, key: AttemptKey) -> AttemptStatus:
        """Makes an unclaimed key unclaimable for ever: REVOKED, or what is there if it was claimed before."""
        ...

    def observe(self, keys: Iterable[AttemptKey]) -> Sequence[AttemptStatus]:
        """Looks at the world now. A dead supervisor's tree is made empty before VANISHED is said."""
        ...

    def clean(self, key: AttemptKey) -> None:
        """Forgets an ended attempt's traces (not its logs). Safe to repeat."""
        ...


class Store(Protocol):
    """Keeps steps. `commit` is all or nothing, and on disk (fsync) when it returns."""

    def load(self) -> tuple[Sequence["Job"], int, int]:
        """Rows of all jobs that have not ended, next_id, next_sequence."""
        ...

    def quarantines(self) -> dict[str, "Quarantine"]:
        """GPUs that are set aside, by UUID."""
        ...

    def commit(self, outcome: "Outcome") -> None:
        """Keeps events, rows, payloads and counters in one transaction. Raises PortError: then nothing is kept."""
        ...


class Telemetry(Protocol):
    """Looks at GPUs. A reading says what is so at its own instant, never a remembered value. Readings go to the
    callback that it was built with, in any order and number; a GPU that does not answer gets a reading with a fault."""

    def open(self) -> None:
        """Begins to be able to look. Raises PortError."""
        ...

    def request(self, uuids: Iterable[str]) -> None:
        """Asks for a fresh reading of each of these GPUs; never waits. Unknown ones are left out."""
        ...

    def close(self) -> None:
        """Lets go of the driver. No reading comes afterwards."""
        ...
