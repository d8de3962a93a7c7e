"""Readings of real GPUs for the daemon's event loop, from a worker process that it watches.

Rule: nothing here waits for the driver. A GPU that does not answer within the deadline is reported as hung, once for
each deadline, while the others go on; a worker that ends, or none of whose GPUs answers, is killed and replaced.
Must never leave more than WORKERS_ABANDONED_MAX processes that the kernel cannot end.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

from courtier.adapters.nvml.discovery import DiscoveryStatus, library_status
from courtier.adapters.nvml.external import People
from courtier.adapters.nvml.messages import Frames, Look, Message, Seen, Started, Watch, Xid, decode_from_worker, frame
from courtier.adapters.nvml.readings import ReadingMaker
from courtier.adapters.nvml.spawn import WorkerProcess
from courtier.domain.devices import Device, Reading

DEADLINE_MS = 5000
BACKOFF_MS_MIN = 250
BACKOFF_MS_MAX = 30_000
WORKERS_ABANDONED_MAX = 2
# NVML sees a GPU that came back only after a new start, so a worker that misses one is replaced this often.
RENEW_MS = 60_000
RECEIVE_BYTES = 1 << 16
# A killed worker is waited for so long at the end; one that the kernel holds is left to it.
CLOSE_SECONDS_MAX = 1.0
# What is queued for a worker that does not read (it is stopped) before it counts as hung.
SEND_BYTES_MAX = 1 << 16


class _Gpu:
    """What is under way for one GPU. asked: a Look is with the worker; wanted: somebody waits for a reading; hopeless:
    the timer is to answer at once, since no worker can be asked."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.asked = False
        self.asked_at_ms = 0
        self.wanted = False
        self.late = False
        self.hopeless = False
        self.timer: asyncio.TimerHandle | None = None


class NvmlTelemetry:
    """Reads `devices` on request and passes readings to `report`, on the event loop that `open` was called on.

    `attribute` maps a pid of this machine to the job that it belongs to, None when it is not Courtier's.
    `deadline_ms` is how long one look at one GPU may take.
    """

    def __init__(
        self,
        devices: Iterable[Device],
        report: Callable[[Sequence[Reading]], None],
        attribute: Callable[[int], int | None],
        *,
        deadline_ms: int = DEADLINE_MS,
        renew_ms: int = RENEW_MS,
    ) -> None:
        self._gpus = {device.uuid: _Gpu(device) for device in devices}
        self._report = report
        self._people = People()
        self._maker = ReadingMaker(attribute, self._people)
        self._deadline_ms = deadline_ms
        self._renew_ms = renew_ms
        self._worker: WorkerProcess | None = None
        self._frames = Frames()
        self._unsent = bytearray()
        self._started = False
        self._refused = False
        # What is said of GPUs while no worker answers: why the last one ended.
        self._fault_down = "driver_failed"
        self._begun_at = 0.0
        self._abandoned: list[WorkerProcess] = []
        self._backoff_ms = BACKOFF_MS_MIN
        self._restart: asyncio.TimerHandle | None = None
        self._open = False
        # NVML's code of each metric that could not be had at the last look, 3 where the driver does not support it.
        self.unavailable: dict[str, dict[str, int]] = {}

    @property
    def worker_pid(self) -> int | None:
        return self._worker.pid if self._worker is not None else None

    @property
    def attribution_unavailable(self) -> bool:
        """The driver's pids are those of another namespace: run the broker with the machine's (`--pid=host`)."""
        return self._people.foreign

    def open(self) -> None:
        """Starts the worker. To be called on the running event loop, whose thread must live on: it dies with that."""
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._start()

    def close(self) -> None:
        """Ends the worker; no report follows."""
        self._open = False
        for gpu in self._gpus.values():
            self._disarm(gpu)
        if self._restart is not None:
            self._restart.cancel()
        self._drop()
        for worker in self._abandoned:
            if not worker.gone_within(CLOSE_SECONDS_MAX):
                worker.forget()
        self._abandoned.clear()

    def request(self, uuids: Iterable[str]) -> None:
        """Asks for fresh readings; those under way are waited for, not doubled. Unknown GPUs are ignored.

        A reading's `at_ms` is when its look was asked for, so nothing in it is older than that.
        """
        for uuid in uuids:
            gpu = self._gpus.get(uuid)
            if gpu is None or not self._open:
                continue
            gpu.wanted = True
            if gpu.timer is None:
                gpu.timer = self._loop.call_later(self._deadline_ms / 1000, self._expired, gpu)
            self._ask(gpu)
            if self._worker is None and self._refused:
                self._expire_soon(gpu)

    # Worker

    def _start(self) -> None:
        self._restart = None
        self._abandoned = [worker for worker in self._abandoned if not worker.gone()]
        if not self._open or self._worker is not None:
            return
        if len(self._abandoned) >= WORKERS_ABANDONED_MAX:
            self._start_later()
            return
        try:
            worker = WorkerProcess()
        except OSError:
            self._start_later()
            return
        worker.connection.setblocking(False)
        self._worker = worker
        self._frames = Frames()
        self._unsent.clear()
        self._started = False
        self._begun_at = time.monotonic()
        self._loop.add_reader(worker.connection, self._readable)
        self._send(Watch(gpus=[(gpu.device.uuid, gpu.device.pci_bus_id) for gpu in self._gpus.values()]))
        for gpu in self._gpus.values():
            gpu.late = False
            if gpu.hopeless:
                # There is somebody to ask again: an answer meant for nobody must not count against the new worker.
                self._disarm(gpu)
                gpu.timer = self._loop.call_later(self._deadline_ms / 1000, self._expired, gpu)
            if gpu.wanted:
                self._ask(gpu)

    def _start_later(self) -> None:
        if self._open and self._restart is None:
            self._restart = self._loop.call_later(self._backoff_ms / 1000, self._start)
            self._backoff_ms = min(self._backoff_ms * 2, BACKOFF_MS_MAX)

    def _drop(self) -> None:
        """Kills the worker and forgets what it owed."""
        if self._worker is None:
            return
        self._loop.remove_reader(self._worker.connection)
        self._loop.remove_writer(self._worker.connection)
        self._worker.kill()
        self._abandoned.append(self._worker)
        self._worker = None
        for gpu in self._gpus.values():
            gpu.asked = False

    def _replace(self, fault: str) -> None:
        self._fault_down = fault
        self._drop()
        self._start_later()

    def _send(self, message: Message) -> None:
        if self._worker is None or len(self._unsent) > SEND_BYTES_MAX:
            return
        self._unsent += frame(message)
        self._writable()

    def _writable(self) -> None:
        assert self._worker is not None
        connection = self._worker.connection
        try:
            del self._unsent[: connection.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            # The reader meets the end of the same stream.
            self._unsent.clear()
        if self._unsent:
            self._loop.add_writer(connection, self._writable)
        else:
            self._loop.remove_writer(connection)

    def _readable(self) -> None:
        assert self._worker is not None
        try:
            data = self._worker.connection.recv(RECEIVE_BYTES)
            messages = [decode_from_worker(content) for content in self._frames.feed(data)]
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._replace("driver_failed")
            return
        if not data:
            self._replace("driver_failed")
            return
        readings = [reading for message in messages if (reading := self._heard(message)) is not None]
        if readings:
            self._report(readings)

    # GPUs

    def _ask(self, gpu: _Gpu) -> None:
        if self._worker is not None and not gpu.asked:
            gpu.asked = True
            gpu.asked_at_ms = _now_ms()
            self._send(Look(uuid=gpu.device.uuid))

    def _expire_soon(self, gpu: _Gpu) -> None:
        """No answer is to be waited for: the driver refused to start."""
        self._disarm(gpu)
        gpu.hopeless = True
        gpu.timer = self._loop.call_later(0, self._expired, gpu)

    def _disarm(self, gpu: _Gpu) -> None:
        gpu.hopeless = False
        if gpu.timer is not None:
            gpu.timer.cancel()
            gpu.timer = None

    def _heard(self, message: object) -> Reading | None:
        if isinstance(message, Started):
            self._started = True
            self._refused = message.code != 0
            if self._refused:
                mismatch = library_status(message) is DiscoveryStatus.DRIVER_LIBRARY_MISMATCH
                self._loop.call_soon(self._replace, "driver_mismatch" if mismatch else "driver_failed")
                for gpu in self._gpus.values():
                    if gpu.wanted:
                        self._expire_soon(gpu)
        elif isinstance(message, Xid):
            self._maker.note_xid(message.uuid, message.code)
            self.request([message.uuid])
        elif isinstance(message, Seen):
            return self._seen(message)
        return None

    def _seen(self, seen: Seen) -> Reading | None:
        gpu = self._gpus.get(seen.uuid)
        if gpu is None:
            return None
        gpu.asked = False
        if gpu.late:
            # It may have been read before the hang: ask again.
            gpu.late = False
            self.request([seen.uuid])
            return None
        gpu.wanted = False
        self._disarm(gpu)
        self.unavailable[seen.uuid] = seen.errors
        if seen.fault is None:
            self._backoff_ms = BACKOFF_MS_MIN
        elif time.monotonic() - self._begun_at > self._renew_ms / 1000:
            self._loop.call_soon(self._replace, "driver_failed")
        return self._maker.reading(gpu.device, seen, gpu.asked_at_ms)

    def _expired(self, gpu: _Gpu) -> None:
        gpu.timer = None
        gpu.hopeless = False
        gpu.late = gpu.asked
        fault = "gpu_hung" if self._worker is not None else self._fault_down
        # What was wanted is answered by this; who still wants to know asks again.
        gpu.wanted = False
        self._report([self._maker.silent(gpu.device, fault, _now_ms())])
        hung = [other for other in self._gpus.values() if other.late]
        waiting = any(other.asked and not other.late for other in self._gpus.values())
        if self._worker is not None and not waiting and (not self._started or len(hung) == len(self._gpus)):
            self._replace("gpu_hung")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
