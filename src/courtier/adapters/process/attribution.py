"""Whose a process is: from its pid to the attempt that it belongs to.

By its cgroup, which only the broker fills, else by its ancestors: everything that a job starts lies below its
supervisor. Never by a name or a variable, which any process can give itself.
"""

import os
from collections.abc import Callable, Mapping

from courtier.adapters.process.identity import stat_fields
from courtier.domain.attempts import AttemptKey

# Ancestors looked at; a chain that is longer is nobody's.
DEPTH_MAX = 256


class Attribution:
    """tag names this broker's home; `supervisors` gives the living ones, by pid."""

    def __init__(self, tag: str, supervisors: Callable[[], Mapping[int, AttemptKey]]) -> None:
        self._folder = f"/courtier-{tag}/"
        self._supervisors = supervisors

    def job_of(self, pid: int) -> int | None:
        """The job that the process belongs to; None when it is not Courtier's, or not there."""
        return self._by_cgroup(pid) or self._by_ancestors(pid)

    def _by_cgroup(self, pid: int) -> int | None:
        try:
            with open(f"/proc/{pid}/cgroup", "rb") as file:
                lines = os.fsdecode(file.read()).splitlines()
        except OSError:
            return None
        for line in lines:
            _, found, rest = line.partition(self._folder)
            number = rest.split("/")[0].split(".")[0]
            if found and number.isdigit():
                return int(number)
        return None

    def _by_ancestors(self, pid: int) -> int | None:
        supervisors = self._supervisors()
        for _ in range(DEPTH_MAX):
            fields = stat_fields(pid)
            parent = int(fields[1]) if fields is not None else 0
            if parent <= 1:
                return None
            if parent in supervisors:
                return supervisors[parent].job_id
            pid = parent
        return None
