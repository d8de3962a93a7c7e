"""Keeps steps in one SQLite file: rows, events, payloads and counters of a step in one transaction, fsynced.

Rows are the truth, and the events of a change share its transaction. Ids never come back: the counter is part
of every step. Decides nothing and caches nothing but encodings.
"""

import sqlite3
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from courtier.domain.health import Quarantine
from courtier.domain.lifecycle import ENDED, JobState
from courtier.domain.workloads import Job
from courtier.engine.events import Event
from courtier.engine.loop import Outcome
from courtier.engine.ports import PortError

# The n-th entry takes a database of version n to n + 1. Entries are only ever added.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
    INSERT INTO meta VALUES ('next_id', 1), ('next_sequence', 1);
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY, active INTEGER NOT NULL, state TEXT NOT NULL, user TEXT NOT NULL,
        name TEXT NOT NULL, queue TEXT NOT NULL, array_id INTEGER, key TEXT,
        submitted_ms INTEGER NOT NULL, finished_ms INTEGER, body BLOB NOT NULL
    );
    CREATE INDEX jobs_active ON jobs (id) WHERE active = 1;
    CREATE INDEX jobs_finished ON jobs (finished_ms) WHERE active = 0;
    CREATE INDEX jobs_array ON jobs (array_id) WHERE array_id IS NOT NULL;
    CREATE INDEX jobs_key ON jobs (user, key) WHERE key IS NOT NULL;
    CREATE TABLE events (
        sequence INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, kind TEXT NOT NULL, job INTEGER NOT NULL,
        body BLOB NOT NULL
    );
    CREATE INDEX events_job ON events (job, sequence);
    CREATE TABLE payloads (sha256 TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
    """,
    """
    ALTER TABLE events RENAME TO events_of_jobs;
    CREATE TABLE events (
        sequence INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, kind TEXT NOT NULL, job INTEGER, body BLOB NOT NULL
    );
    INSERT INTO events SELECT sequence, at_ms, kind, job, body FROM events_of_jobs;
    DROP TABLE events_of_jobs;
    CREATE INDEX events_job ON events (job, sequence);
    CREATE TABLE quarantines (uuid TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
    """,
)

_UPSERT = (
    "INSERT INTO jobs VALUES (?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (id) DO UPDATE SET active=excluded.active, "
    "state=excluded.state, name=excluded.name, queue=excluded.queue, finished_ms=excluded.finished_ms, "
    "body=excluded.body"
)
_JOB_DECODER = msgspec.json.Decoder(Job)
_QUARANTINE_DECODER = msgspec.json.Decoder(Quarantine)
_ENCODER = msgspec.json.Encoder()
_FIELD_TYPES = typing.get_type_hints(Job)


def _row(job: Job) -> tuple[Any, ...]:
    spec = job.spec
    return (
        job.id,
        job.state not in ENDED,
        job.state.value,
        spec.user,
        spec.name,
        spec.queue,
        job.array_id,
        spec.key,
        job.submitted_ms,
        job.finished_ms,
        _ENCODER.encode(job),
    )


def _event_body(event: Event) -> bytes:
    if event.row is not None:
        return _ENCODER.encode({"row": event.row})
    body: dict[str, Any] = {"changes": dict(event.changes)}
    if event.uuid is not None:
        body["uuid"] = event.uuid
    if event.quarantine is not None:
        body["quarantine"] = event.quarantine
    return _ENCODER.encode(body)


def _event(sequence: int, at_ms: int, kind: str, job_id: int | None, body: bytes) -> Event:
    raw = msgspec.json.decode(body)
    if "row" in raw:
        return Event(sequence, at_ms, kind, job_id, row=msgspec.convert(raw["row"], Job))
    changes = {name: msgspec.convert(value, _FIELD_TYPES[name]) for name, value in raw["changes"].items()}
    aside = raw.get("quarantine")
    return Event(
        sequence,
        at_ms,
        kind,
        job_id,
        changes,
        uuid=raw.get("uuid"),
        quarantine=msgspec.convert(aside, Quarantine) if aside is not None else None,
    )


class SqliteStore:
    """Implements engine.ports.Store, and the look-ups of the shell. Raises PortError from the constructor."""

    def __init__(self, path: Path) -> None:
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._migrate(path)
        except sqlite3.Error as error:
            raise PortError("store_refused", f"{path} can not be used as the store: {error}") from error

    def _migrate(self, path: Path) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise PortError(
                "store_newer",
                f"{path} was written by a newer Courtier (store version {version}, this one knows {len(MIGRATIONS)})",
            )
        for number in range(version, len(MIGRATIONS)):
            self._db.executescript(f"BEGIN IMMEDIATE; {MIGRATIONS[number]} PRAGMA user_version = {number + 1}; COMMIT;")

    def close(self) -> None:
        self._db.close()

    # Port -----------------------------------------------------------------------------------------

    def load(self) -> tuple[Sequence[Job], int, int]:
        rows = self._db.execute("SELECT body FROM jobs WHERE active = 1 ORDER BY id").fetchall()
        counters = dict(self._db.execute("SELECT name, value FROM meta").fetchall())
        (highest,) = self._db.execute("SELECT max(max(id), coalesce(max(array_id), 0)) FROM jobs").fetchone()
        if highest is not None and counters["next_id"] <= highest:
            raise PortError("store_damaged", f"the store's counter {counters['next_id']} is not above job {highest}")
        return [_JOB_DECODER.decode(body) for (body,) in rows], counters["next_id"], counters["next_sequence"]

    def quarantines(self) -> dict[str, Quarantine]:
        found = self._db.execute("SELECT uuid, body FROM quarantines").fetchall()
        return {uuid: _QUARANTINE_DECODER.decode(body) for uuid, body in found}

    def commit(self, outcome: Outcome) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR IGNORE INTO payloads VALUES (?, ?)", outcome.payloads.items())
            self._db.executemany(_UPSERT, map(_row, outcome.rows))
            self._db.executemany(
                "INSERT INTO events VALUES (?,?,?,?,?)",
                ((e.sequence, e.at_ms, e.kind, e.job_id, _event_body(e)) for e in outcome.events),
            )
            self._keep_quarantines(outcome.quarantines)
            self._db.executemany(
                "UPDATE meta SET value = ? WHERE name = ?",
                [(outcome.next_id, "next_id"), (outcome.next_sequence, "next_sequence")],
            )
            self._db.execute("COMMIT")
        except (sqlite3.Error, OverflowError) as error:
            self._undo()
            full = getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)
            code = "store_full" if full else "store_refused"
            text = "the disk is full: nothing was kept" if full else f"the store refused: {error}"
            raise PortError(code, text) from error

    def _keep_quarantines(self, quarantines: dict[str, Quarantine | None]) -> None:
        for uuid, quarantine in quarantines.items():
            self._db.execute("DELETE FROM quarantines WHERE uuid = ?", (uuid,))
            if quarantine is not None:
                self._db.execute("INSERT INTO quarantines VALUES (?, ?)", (uuid, _ENCODER.encode(quarantine)))

    def _undo(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    # Look-ups -------------------------------------------------------------------------------------

    def _jobs(self, query: str, arguments: Iterable[Any]) -> list[Job]:
        found = self._db.execute(f"SELECT body FROM jobs WHERE {query}", tuple(arguments)).fetchall()
        return [_JOB_DECODER.decode(body) for (body,) in found]

    def job(self, job_id: int) -> Job | None:
        found = self._jobs("id = ?", [job_id]) if job_id < 1 << 63 else []
        return found[0] if found else None

    def array_jobs(self, array_id: int) -> list[Job]:
        """All jobs of an array, in order."""
        return self._jobs("array_id = ? ORDER BY id", [array_id]) if array_id < 1 << 63 else []

    def all_jobs(self) -> list[Job]:
        """Every row there is."""
        return self._jobs("1 ORDER BY id", [])

    def job_by_key(self, user: str, key: str) -> int | None:
        """The newest job that this user submitted under the key."""
        found = self._db.execute(
            "SELECT coalesce(array_id, id) FROM jobs WHERE user = ? AND key = ? ORDER BY id DESC LIMIT 1", (user, key)
        ).fetchone()
        return found[0] if found is not None else None

    def ended_jobs(
        self,
        *,
        since_ms: int | None,
        user: str | None,
        states: Sequence[str] | None,
        name: str | None,
        limit: int | None,
    ) -> tuple[list[Job], int]:
        """Ended jobs, the newest last, and how many match beyond the limit."""
        clauses, arguments = ["active = 0"], list[Any]()
        if since_ms is not None:
            clauses.append("finished_ms >= ?")
            arguments.append(since_ms)
        for column, value in (("user", user), ("name", name)):
            if value is not None:
                clauses.append(f"{column} = ?")
                arguments.append(value)
        if states:
            known = [JobState(state).value for state in states]
            clauses.append(f"state IN ({','.join('?' * len(known))})")
            arguments += known
        where = " AND ".join(clauses)
        (total,) = self._db.execute(f"SELECT count(*) FROM jobs WHERE {where}", arguments).fetchone()
        newest = self._jobs(
            f"{where} ORDER BY finished_ms DESC, id DESC LIMIT ?", [*arguments, -1 if limit is None else limit]
        )
        return newest[::-1], total

    def events(self, *, job: int | None, after: int, limit: int) -> list[Event]:
        """Events with a greater sequence, in order; `job` may be an array's number."""
        clause, arguments = "sequence > ?", [after]
        if job is not None:
            clause += " AND job IN (SELECT id FROM jobs WHERE id = ? OR array_id = ?)"
            arguments += [job, job]
        found = self._db.execute(
            f"SELECT sequence, at_ms, kind, job, body FROM events WHERE {clause} ORDER BY sequence LIMIT ?",
            (*arguments, limit),
        ).fetchall()
        return [_event(*row) for row in found]

    def payload(self, sha256: str) -> bytes | None:
        found = self._db.execute("SELECT body FROM payloads WHERE sha256 = ?", (sha256,)).fetchone()
        return found[0] if found is not None else None
