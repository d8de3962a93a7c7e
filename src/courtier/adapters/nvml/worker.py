"""The process that loads the NVIDIA library: `python -m courtier.adapters.nvml.worker FD`.

One thread a GPU, so that a call that hangs on one delays no other; one thread waits for Xid events; the main thread
only reads requests, so that it always notices when its owner is gone, and then ends the process at once. Must never
outlive its owner, import anything large, or write to stdout (a stub library may).
"""

import ctypes
import os
import queue
import signal
import socket
import sys
import threading
import time
from typing import Any

from courtier.adapters.nvml.messages import (
    Described,
    Discover,
    Done,
    Frames,
    Links,
    Look,
    Message,
    Seen,
    Started,
    Watch,
    Xid,
    decode_to_worker,
    frame,
    receive,
)

PR_SET_PDEATHSIG = 1
THREAD_STACK_BYTES = 256 << 10
EVENT_WAIT_MS = 5000
EVENT_RETRY_SECONDS = 1.0
# A GPU that was lost when the event set was made joins it this much later at most.
EVENT_RENEW_SECONDS = 30.0
LIBRARY_NOT_FOUND = 12
TIMED_OUT = 10


class Channel:
    """The socket to the owner; any thread may send."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        data = frame(message)
        try:
            with self._lock:
                self.connection.sendall(data)
        except OSError:
            os._exit(0)


def loaded_library() -> str | None:
    """The file that the dynamic linker took for libnvidia-ml."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            if "libnvidia-ml" in line:
                return line.split(maxsplit=5)[5].strip()
    return None


def start_library() -> Started:
    """Loads and initialises NVML. Raises nothing."""
    try:
        import pynvml

        from courtier.adapters.nvml import driver
    except ImportError as error:
        return Started(code=LIBRARY_NOT_FOUND, text=str(error), library_path=None, binding=False)
    try:
        driver.ask(pynvml.nvmlInit)
    except driver.Refused as refused:
        path = loaded_library()
        words = driver.explain(refused.code) if path is not None else "no libnvidia-ml.so.1 could be loaded"
        return Started(code=refused.code, text=words, library_path=path)
    try:
        version = driver.text(pynvml.nvmlSystemGetDriverVersion)
    except driver.Refused:
        version = None
    try:
        count = driver.ask(pynvml.nvmlDeviceGetCount)
    except driver.Refused as refused:
        return Started(refused.code, driver.explain(refused.code), loaded_library(), version)
    return Started(code=0, text="", library_path=loaded_library(), driver_version=version, gpus=count)


def spawn(target: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def join_all(threads: list[threading.Thread], until: float) -> None:
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def discover(channel: Channel, budget_ms: int) -> None:
    """Describes every GPU side by side, then how they are linked; what hangs is left out."""
    until = time.monotonic() + budget_ms / 1000
    started = start_library()
    channel.send(started)
    if started.code != 0:
        return
    from courtier.adapters.nvml import driver

    described: list[int] = []

    def describe(index: int) -> None:
        try:
            found = driver.describe(index)
        except Exception as error:
            found = Described(index=index, code=driver.UNKNOWN, text=repr(error))
        channel.send(found)
        if found.code == 0:
            described.append(index)

    def link(index: int, others: list[int]) -> None:
        channel.send(Links(index=index, links=driver.links_of(index, others)))

    half = time.monotonic() + (until - time.monotonic()) * 0.6
    join_all([spawn(describe, index) for index in range(started.gpus)], half)
    known = sorted(described)
    join_all([spawn(link, index, [other for other in known if other != index]) for index in known], until)
    channel.send(Done())


class Watcher:
    """Reads a fixed set of GPUs on request."""

    def __init__(self, channel: Channel, gpus: list[tuple[str, str | None]]) -> None:
        self._channel = channel
        self._gpus = gpus
        self._ready = threading.Event()
        self._requests: dict[str, queue.SimpleQueue[None]] = {uuid: queue.SimpleQueue() for uuid, _ in gpus}
        for uuid, pci_bus_id in gpus:
            spawn(self._serve, uuid, pci_bus_id)
        spawn(self._start)

    def look(self, uuid: str) -> None:
        if uuid in self._requests:
            self._requests[uuid].put(None)

    def _start(self) -> None:
        started = start_library()
        self._channel.send(started)
        if started.code == 0:
            self._ready.set()
            self._events()

    def _serve(self, uuid: str, pci_bus_id: str | None) -> None:
        requests = self._requests[uuid]
        self._ready.wait()
        from courtier.adapters.nvml import driver

        device = None
        while True:
            requests.get()
            try:
                if device is None:
                    device = driver.find(uuid, pci_bus_id)
                seen = driver.look(uuid, device)
            except driver.Refused as refused:
                seen = Seen(uuid=uuid, fault=driver.fault_of([refused.code], False), errors={"handle": refused.code})
            except Exception:
                seen = Seen(uuid=uuid, fault="driver_failed", errors={"handle": driver.UNKNOWN})
            if seen.fault is not None:
                device = None
            self._channel.send(seen)

    def _events(self) -> None:
        """Waits for Xid events for ever; a GPU that cannot take part is asked again later."""
        import pynvml

        from courtier.adapters.nvml import driver

        former = None
        while True:
            try:
                events = driver.ask(pynvml.nvmlEventSetCreate)
            except driver.Refused:
                time.sleep(EVENT_RENEW_SECONDS)
                continue
            known = self._register(events)
            # Freed only now, so that hardly an event falls between two sets.
            if former is not None:
                driver.optional(pynvml.nvmlEventSetFree, former)
            former = events
            began = time.monotonic()
            while len(known) == len(self._gpus) or time.monotonic() < began + EVENT_RENEW_SECONDS:
                try:
                    event = driver.ask(pynvml.nvmlEventSetWait, events, EVENT_WAIT_MS)
                except driver.Refused as refused:
                    if refused.code == TIMED_OUT:
                        continue
                    # One GPU fell off the bus: a set that it is in tells of no other any more.
                    if time.monotonic() < began + EVENT_RETRY_SECONDS:
                        time.sleep(EVENT_RETRY_SECONDS)
                    break
                if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                    uuid = known.get(ctypes.cast(event.device, ctypes.c_void_p).value)
                    if uuid is not None:
                        self._channel.send(Xid(uuid=uuid, code=int(event.eventData)))

    def _register(self, events: Any) -> dict[int | None, str]:
        import pynvml

        from courtier.adapters.nvml import driver

        known = {}
        for uuid, pci_bus_id in self._gpus:
            try:
                device = driver.find(uuid, pci_bus_id)
                driver.ask(pynvml.nvmlDeviceRegisterEvents, device, pynvml.nvmlEventTypeXidCriticalError, events)
            except driver.Refused:
                continue
            known[ctypes.cast(device, ctypes.c_void_p).value] = uuid
        return known


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    threading.stack_size(THREAD_STACK_BYTES)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    frames = Frames()
    watcher = None
    while True:
        try:
            contents = receive(channel.connection, frames)
        except (OSError, ValueError):
            contents = None
        if contents is None:
            # Threads may be stuck in the driver: no orderly end is possible.
            os._exit(0)
        for content in contents:
            request = decode_to_worker(content)
            if isinstance(request, Discover):
                spawn(discover, channel, request.budget_ms)
            elif isinstance(request, Watch):
                watcher = Watcher(channel, request.gpus)
            elif isinstance(request, Look) and watcher is not None:
                watcher.look(request.uuid)


if __name__ == "__main__":
    main()
