"""What the API asks of a broker: the answers behind the routes. Looks rows up and words them; decides nothing."""

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import msgspec

from courtier.adapters.simtelemetry import SimulatedTelemetry
from courtier.api.backend import ApiError, HistoryQuery, JobQuery, LogQuery
from courtier.api.peer import Peer
from courtier.api.schema import (
    VERSION,
    CancelBody,
    ChangeBody,
    JobView,
    ManyGpus,
    SubmitBody,
    Submitted,
    Why,
)
from courtier.daemon.access import Viewer, not_allowed, viewer_of
from courtier.daemon.broker import Broker, StepFailed, now_ms
from courtier.daemon.diagnosis import diagnose
from courtier.daemon.intake import Refused, check_range, dependencies_of, spec_of
from courtier.daemon.journal import follow_log, read_log
from courtier.daemon.selection import choose
from courtier.daemon.views import gpu_view, job_view, reason_view, without_secrets
from courtier.domain.allocations import Allocation
from courtier.domain.attempts import StopCause
from courtier.domain.devices import Device
from courtier.domain.lifecycle import ENDED, JobState
from courtier.domain.reasons import Reason, reason
from courtier.domain.workloads import Dependency, Job
from courtier.engine.events import Event
from courtier.engine.ports import PortError
from courtier.engine.stimuli import (
    ChangeAsked,
    HoldAsked,
    ReleaseAsked,
    Request,
    RequeueAsked,
    RestoreAsked,
    SignalAsked,
    StopAsked,
    SubmitAsked,
)
from courtier.engine.turn import Reply

WAIT_MS_MAX = 30_000


def refusal_error(why: Reason) -> ApiError:
    """The error document of a refusal; impossible requests exit 2, unknown jobs 5, the rest 1."""
    exit_code = 2 if why.impossible else 5 if why.code == "job_unknown" else 1
    status = {2: 422, 5: 404, 1: 409}[exit_code]
    return ApiError(why.code, why.text, exit_code=exit_code, status=status, numbers=dict(why.numbers))


class BrokerBackend:
    """Implements api.server.Backend."""

    def __init__(self, broker: Broker, shutdown: Callable[[], None]) -> None:
        self._broker = broker
        self._shutdown = shutdown
        self._encoded: dict[tuple[int, bool], tuple[Job, Reason | None, bytes]] = {}
        self._encoder = msgspec.json.Encoder()

    async def health(self) -> dict[str, object]:
        broker = self._broker
        return {
            "version": VERSION,
            "status": "ok",
            "box": broker.box.simulated or "real",
            "pid": os.getpid(),
            "home": str(broker.home),
            "gpus": len(broker.box.devices),
        }

    # Requests -------------------------------------------------------------------------------------

    async def _ask(self, make: Callable[[int], Request]) -> Reply:
        try:
            reply = await self._broker.ask(make)
        except StepFailed as error:
            status = 507 if error.code == "store_full" else 500
            raise ApiError(error.code, error.text, exit_code=1, status=status, numbers={}) from error
        except Refused as error:
            raise refusal_error(error.why) from error
        if reply.refusal is not None:
            raise refusal_error(reply.refusal)
        return reply

    async def submit(self, body: SubmitBody, peer: Peer | None) -> Submitted:
        viewer = self._viewer(peer)
        user, uid = viewer.user, os.geteuid() if viewer.uid is None else viewer.uid
        try:
            spec, payload = spec_of(body, user=user, uid=uid, gid=viewer.gid)
            wanted = dependencies_of(body.dependencies)
        except Refused as error:
            raise refusal_error(error.why) from error

        def make(token: int) -> SubmitAsked:
            dependencies, ended = self._resolve(wanted)
            return SubmitAsked(
                token,
                spec,
                payload,
                priority=body.priority,
                hold=body.hold,
                array=tuple(body.array) if body.array is not None else None,
                array_limit=body.array_limit,
                dependencies=dependencies,
                ended=ended,
                begin_ms=body.begin_ms,
                retries=body.retries,
                known_key_job=self._broker.store.job_by_key(user, body.key) if body.key is not None else None,
                dry_run=body.dry_run,
            )

        reply = await self._ask(make)
        jobs = list(reply.jobs)
        if reply.existing and not jobs and body.key is not None:
            known = self._broker.store.job_by_key(user, body.key)
            jobs = self._broker.members(known) if known is not None else []
        views = [self._preview(job) if body.dry_run else self._view(job) for job in jobs]
        many = views if jobs[0].array_id is not None else None
        return Submitted(VERSION, views[0], many, existing=reply.existing, dry_run=body.dry_run)

    def _resolve(self, wanted: tuple[tuple[object, int], ...]) -> tuple[tuple[Dependency, ...], dict[int, JobState]]:
        """Arrays become their jobs; outcomes of jobs that are no longer live come along."""
        dependencies: list[Dependency] = []
        ended: dict[int, JobState] = {}
        for kind, number in wanted:
            members = self._broker.members(number)
            if not members:
                raise Refused(reason("dependency_unknown", job=number))
            for job in members:
                dependencies.append(Dependency(kind, job.id))  # type: ignore[arg-type]
                if job.state in ENDED:
                    ended[job.id] = job.state
        return tuple(dependencies), ended

    def _viewer(self, peer: Peer | None) -> Viewer:
        return viewer_of(peer, self._broker.settings.admin_group)

    def _targets(self, number: int, viewer: Viewer, *, live_only: bool = False) -> tuple[int, ...]:
        """Ids that a number means for one step. An array means its jobs that have not ended, if there are any.
        Raises ApiError when they are somebody else's."""
        ids = self._broker.load_for_step(number)
        if not ids:
            raise Refused(reason("job_unknown", job=number))
        for job_id in ids:
            viewer.require_owner(self._broker.loop.state.jobs[job_id])
        live = tuple(job_id for job_id in ids if self._broker.loop.state.jobs[job_id].state not in ENDED)
        return live if live_only and live else ids

    async def cancel(self, number: int, body: CancelBody, peer: Peer | None) -> bytes:
        viewer = self._viewer(peer)

        def make(token: int) -> Request:
            targets = self._targets(number, viewer, live_only=True)
            if body.signal is not None:
                check_range("signal_number", body.signal)
                return SignalAsked(token, targets, body.signal)
            return StopAsked(token, targets, StopCause.CANCEL, viewer.user, skip_grace=body.now)

        return self._jobs_document(list((await self._ask(make)).jobs), viewer)

    async def hold(self, number: int, peer: Peer | None) -> bytes:
        viewer = self._viewer(peer)
        reply = await self._ask(lambda token: HoldAsked(token, self._targets(number, viewer, live_only=True)))
        return self._jobs_document(list(reply.jobs), viewer)

    async def release(self, number: int, peer: Peer | None) -> bytes:
        viewer = self._viewer(peer)
        reply = await self._ask(lambda token: ReleaseAsked(token, self._targets(number, viewer, live_only=True)))
        return self._jobs_document(list(reply.jobs), viewer)

    async def requeue(self, number: int, peer: Peer | None) -> bytes:
        viewer = self._viewer(peer)
        reply = await self._ask(lambda token: RequeueAsked(token, self._targets(number, viewer), viewer.user))
        return self._jobs_document(list(reply.jobs), viewer)

    async def change(self, number: int, body: ChangeBody, peer: Peer | None) -> bytes:
        wanted = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not None}
        lifts_limit = wanted.get("time_limit_ms") == 0
        try:
            for name, value in wanted.items():
                if isinstance(value, int) and not (lifts_limit and name == "time_limit_ms"):
                    check_range(name, value)
        except Refused as error:
            raise refusal_error(error.why) from error
        if lifts_limit:
            wanted["time_limit_ms"] = None
        viewer = self._viewer(peer)
        reply = await self._ask(lambda token: ChangeAsked(token, self._targets(number, viewer, live_only=True), wanted))
        return self._jobs_document(list(reply.jobs), viewer)

    # Looking --------------------------------------------------------------------------------------

    def _view(self, job: Job) -> JobView:
        return job_view(job, self._broker.loop.reason_of(job, now_ms()), self._broker.box, self._broker.home)

    def _preview(self, job: Job) -> JobView:
        """A job that is only asked about: where it would start now, or why it would wait."""
        found = self._broker.loop.preview(job, now_ms())
        if isinstance(found, Allocation):
            job, why = replace(job, allocation=found), None
        else:
            waits = job.dependencies or job.state is JobState.HELD or (job.begin_ms or 0) > now_ms()
            why = self._broker.loop.reason_of(job, now_ms()) if waits else found
        return msgspec.structs.replace(job_view(job, why, self._broker.box, self._broker.home), id=None)

    def _encoded_view(self, job: Job, viewer: Viewer) -> bytes:
        """The job's JSON, kept while neither its row nor its reason changes: a long queue is mostly the same.

        Others see that a job is there and what it holds, not what it was told.
        """
        why = self._broker.loop.reason_of(job, now_ms())
        owned = viewer.owns(job)
        kept = self._encoded.get((job.id, owned))
        if kept is not None and kept[0] is job and kept[1] == why:
            return kept[2]
        view = job_view(job, why, self._broker.box, self._broker.home)
        encoded = self._encoder.encode(view if owned else without_secrets(view))
        if job.state not in ENDED:
            self._encoded[job.id, owned] = (job, why, encoded)
        return encoded

    def _jobs_document(self, jobs: list[Job], viewer: Viewer, total: int | None = None) -> bytes:
        if len(self._encoded) > 4 * len(self._broker.loop.state.jobs) + 1000:
            live = self._broker.loop.state.jobs
            self._encoded = {key: kept for key, kept in self._encoded.items() if key[0] in live}
        body = b",".join(self._encoded_view(job, viewer) for job in jobs)
        tail = b"" if total is None else b',"total":%d' % total
        return b'{"version":%d,"jobs":[%b]%b}' % (VERSION, body, tail)

    async def jobs(self, query: JobQuery, peer: Peer | None) -> bytes:
        chosen = choose(self._broker, query)
        limited = chosen[: query.limit] if query.limit is not None else chosen
        return self._jobs_document(limited, self._viewer(peer), total=len(chosen))

    def _members(self, number: int) -> list[Job]:
        members = self._broker.members(number)
        if not members:
            raise refusal_error(reason("job_unknown", job=number))
        return members

    async def job(self, number: int, peer: Peer | None) -> bytes:
        viewer, members = self._viewer(peer), self._members(number)
        first = self._encoded_view(members[0], viewer)
        if members[0].id == number:
            return b'{"version":%d,"job":%b}' % (VERSION, first)
        rest = b",".join(self._encoded_view(job, viewer) for job in members)
        return b'{"version":%d,"job":%b,"jobs":[%b]}' % (VERSION, first, rest)

    async def why(self, number: int) -> Why:
        job = self._members(number)[0]
        view = reason_view(self._broker.loop.reason_of(job, now_ms()))
        return Why(VERSION, job.id, [view] if view is not None else [], None)

    async def wait(self, number: int, timeout_ms: int, until: str, peer: Peer | None) -> bytes:
        deadline = now_ms() + min(timeout_ms, WAIT_MS_MAX)
        self._members(number)
        while True:
            done = not any(until == "ended" or job.started_ms is None for job in self._live(number))
            left_ms = deadline - now_ms()
            if done or left_ms <= 0:
                document = self._jobs_document(self._members(number), self._viewer(peer))
                return document[:-1] + (b',"done":true}' if done else b',"done":false}')
            await self._broker.wait_change(left_ms)

    def _live(self, number: int) -> list[Job]:
        """The live jobs that a number means; ended ones need no look at the store."""
        state = self._broker.loop.state
        if number in state.jobs:
            return [state.jobs[number]]
        return [state.jobs[job_id] for job_id in state.array_members.get(number, ())]

    async def logs(self, number: int, query: LogQuery, peer: Peer | None) -> tuple[int, AsyncIterator[bytes]]:
        job = self._members(number)[0]
        self._viewer(peer).require_owner(job)
        if query.follow:
            return follow_log(self._broker, job, query)
        return read_log(self._broker, job, query)

    async def attach(self, number: int, timeout_ms: int, peer: Peer | None) -> dict[str, object]:
        self._viewer(peer).require_owner(self._members(number)[0])
        deadline = now_ms() + min(timeout_ms, WAIT_MS_MAX)
        while True:
            job = self._members(number)[0]
            ready = str(job.attempt_key) in self._broker.attachable
            left_ms = deadline - now_ms()
            if ready or job.state in ENDED or left_ms <= 0:
                directory = str(self._broker.home / "run" / str(job.attempt_key)) if ready else None
                why = reason_view(self._broker.loop.reason_of(job, now_ms()))
                return {
                    "version": VERSION,
                    "job": job.id,
                    "state": job.state.value,
                    "directory": directory,
                    "reason": why,
                }
            await self._broker.wait_change(left_ms)

    async def history(self, query: HistoryQuery, peer: Peer | None) -> bytes:
        jobs, total = self._broker.store.ended_jobs(
            since_ms=query.since_ms, user=query.user, states=query.states, name=query.name, limit=query.limit
        )
        return self._jobs_document(list(jobs), self._viewer(peer), total=total)

    async def events(self, job: int | None, after: int, limit: int) -> bytes:
        if job is not None:
            self._members(job)
        found = self._broker.store.events(job=job, after=after, limit=limit)
        body = b",".join(self._event(event) for event in found)
        return b'{"version":%d,"events":[%b]}' % (VERSION, body)

    def _event(self, event: Event) -> bytes:
        view: dict[str, object] = {
            "sequence": event.sequence,
            "at_ms": event.at_ms,
            "kind": event.kind,
            "job": event.job_id,
        }
        if event.uuid is not None:
            view["gpu"] = event.uuid
        if event.quarantine is not None:
            view["reason"] = reason_view(event.quarantine.reason)
        view.update({name: value for name, value in event.changes.items() if name not in ("spec", "dependencies")})
        for name, value in view.items():
            if isinstance(value, Reason):
                view[name] = reason_view(value)
        return self._encoder.encode(view)

    async def follow_events(self, job: int | None, after: int) -> AsyncIterator[bytes]:
        while True:
            for event in self._broker.store.events(job=job, after=after, limit=1000):
                after = event.sequence
                yield self._event(event) + b"\n"
            await self._broker.wait_change(WAIT_MS_MAX)

    async def gpus(self) -> ManyGpus:
        loop = self._broker.loop
        hot = self._broker.settings.gpu_hot_celsius
        views = [
            gpu_view(device, loop.state, loop.readings, loop.freed_ms, hot_celsius=hot)
            for device in self._broker.box.devices
        ]
        return ManyGpus(VERSION, views)

    async def doctor(self) -> dict[str, object]:
        return {"version": VERSION, "checks": diagnose(self._broker)}

    async def drill(self, gpu: int, kind: str, value: int | None, peer: Peer | None) -> ManyGpus:
        """Makes trouble on a simulated GPU; refused on real ones."""
        self._viewer(peer).require_admin("a drill")
        device, telemetry = self._device(gpu), self._broker.telemetry
        if not isinstance(telemetry, SimulatedTelemetry):
            raise not_allowed("drills are for simulated boxes: these GPUs are real", gpu=gpu)
        try:
            telemetry.drill(device.uuid, kind, value)
        except PortError as error:
            raise ApiError(error.code, error.text, exit_code=2, status=400, numbers={}) from error
        if kind == "restore":
            aside = tuple(self._broker.loop.state.quarantines)
            mismatched = [u for u in aside if self._broker.loop.state.quarantines[u].reason.code == "driver_mismatch"]
            await self._ask(lambda token: RestoreAsked(token, (device.uuid, *mismatched)))
        self._broker.telemetry.request(other.uuid for other in self._broker.box.devices)
        await self._ask(lambda token: RestoreAsked(token, ()))
        return await self.gpus()

    def _device(self, index: int) -> Device:
        for device in self._broker.box.devices:
            if device.index == index:
                return device
        count = len(self._broker.box.devices)
        text = f"no GPU {index} here: there are {count}"
        raise ApiError("gpu_unknown", text, exit_code=5, status=404, numbers={"gpu": index})

    async def shutdown(self, cancel_jobs: bool, peer: Peer | None) -> dict[str, object]:
        """Ends the broker; with cancel_jobs every job is asked to end first, and waited for."""
        viewer = self._viewer(peer)
        viewer.require_admin("stopping the broker")
        if cancel_jobs:
            state = self._broker.loop.state
            try:
                # Looked up within the step: a job may have ended since, and one that has needs no stop.
                await self._ask(lambda token: StopAsked(token, tuple(state.jobs), StopCause.CANCEL, viewer.user))
            except ApiError as error:
                if error.status >= 500:
                    raise
            while self._broker.loop.state.holding:
                await self._broker.wait_change(1000)
        self._shutdown()
        return {"version": VERSION, "status": "stopping"}
