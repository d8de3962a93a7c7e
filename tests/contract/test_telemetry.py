"""The promises of engine.ports.Telemetry, kept by the simulated box and by the simulator's own GPUs alike."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courtier.adapters.simbox import simulated_devices
from courtier.adapters.simtelemetry import SimulatedTelemetry, SimulatedUse
from courtier.domain.allocations import Allocation, DeviceShare
from courtier.domain.attempts import AttemptKey, AttemptPhase, AttemptStatus
from courtier.domain.devices import Device, Reading
from courtier.domain.lifecycle import JobState
from courtier.domain.workloads import Job, JobSpec, Request, WorkloadClass
from courtier.sim.processes import Attempt
from courtier.sim.world import World

GIB = 1 << 30


class Box:
    """SimulatedTelemetry, told which attempts live."""

    def __init__(self) -> None:
        self.devices: Sequence[Device] = simulated_devices("2xA100-40GB+1xL4", "seed")
        self._heard: list[Reading] = []
        self._now_ms = 0
        self._telemetry = SimulatedTelemetry(self.devices, self._heard.extend, lambda: self._now_ms)
        self._telemetry.open()

    def begin(self, key: AttemptKey, uses: dict[str, int]) -> None:
        self._telemetry.begin(key, [SimulatedUse(key, uuid, size, 40) for uuid, size in uses.items()])

    def end(self, key: AttemptKey) -> None:
        self._telemetry.end(key)

    def read(self, uuids: Iterable[str], now_ms: int) -> Sequence[Reading]:
        self._now_ms = now_ms
        self._heard.clear()
        self._telemetry.request(uuids)
        return list(self._heard)


class Simulator:
    """sim.world, whose readings follow from the attempts that live in it."""

    def __init__(self) -> None:
        self._world = World(0)
        self.devices: Sequence[Device] = self._world.box.devices

    def begin(self, key: AttemptKey, uses: dict[str, int]) -> None:
        shares = tuple(DeviceShare(uuid, 0, "A100-80GB", size, whole=False) for uuid, size in uses.items())
        allocation = Allocation(shares, 1, None, "env", None, "boot-0", 0)
        spec = JobSpec("job", "user", 0, "default", WorkloadClass.BATCH, (b"true",), b"/", Request(), "0")
        job = Job(key.job_id, spec, JobState.RUNNING, 0, 0, allocation=allocation)
        status = AttemptStatus(key, AttemptPhase.RUNNING)
        self._world.processes.attempts[key] = Attempt(job, status, None, boot_id="boot-0")

    def end(self, key: AttemptKey) -> None:
        attempt = self._world.processes.attempts.get(key)
        if attempt is not None:
            attempt.status = AttemptStatus(key, AttemptPhase.ENDED)

    def read(self, uuids: Iterable[str], now_ms: int) -> Sequence[Reading]:
        self._world.now = now_ms
        by_uuid = {reading.uuid: reading for reading in self._world._reading().readings}
        return [by_uuid[uuid] for uuid in uuids if uuid in by_uuid]


BOXES = {"simbox": Box, "simulator": Simulator}
both = pytest.mark.parametrize("box", BOXES)


def one(box: Any, device: Device, now_ms: int = 7) -> Reading:
    (reading,) = box.read([device.uuid], now_ms)
    return reading  # type: ignore[no-any-return]


def job_key(number: int) -> AttemptKey:
    return AttemptKey(number, 1, "1")


@both
def test_memory_comes_with_an_attempt_and_goes_with_it(box: str) -> None:
    made = BOXES[box]()
    device, other = made.devices[:2]
    assert one(made, device).memory_bytes_used == device.memory_bytes_reserved
    made.begin(job_key(1), {device.uuid: 3 * GIB})
    made.begin(job_key(2), {device.uuid: GIB, other.uuid: 2 * GIB})
    reading = one(made, device)
    assert reading.memory_bytes_used == device.memory_bytes_reserved + 4 * GIB
    assert reading.tenants == ((1, 3 * GIB), (2, GIB))
    made.end(job_key(1))
    made.end(job_key(1))
    assert one(made, device).tenants == ((2, GIB),)
    assert one(made, device).memory_bytes_used == device.memory_bytes_reserved + GIB
    assert one(made, other).tenants == ((2, 2 * GIB),)
    made.end(job_key(2))
    for read in made.read([device.uuid, other.uuid], 8):
        assert (read.tenants, read.memory_bytes_used) == ((), device.memory_bytes_reserved)


@both
def test_a_reading_is_of_the_instant_that_was_asked_and_of_the_gpus_that_answer(box: str) -> None:
    made = BOXES[box]()
    uuids = [device.uuid for device in made.devices]
    for now_ms in (5, 9):
        readings = made.read(["GPU-nobody", uuids[1], uuids[0]], now_ms)
        assert [(read.uuid, read.at_ms, read.fault) for read in readings] == [
            (uuids[1], now_ms, None),
            (uuids[0], now_ms, None),
        ]
    assert list(made.read([], 9)) == []


steps = st.lists(
    st.tuples(st.sampled_from(["begin", "end"]), st.integers(1, 4), st.integers(0, 2), st.integers(0, 60)), max_size=20
)


@given(steps)
def test_no_memory_without_a_living_attempt_and_never_more_than_all(
    story: list[tuple[str, int, int, int]],
) -> None:
    made = Box()
    living: dict[int, str] = {}
    for what, number, place, size in story:
        uuid = made.devices[place].uuid
        if what == "begin":
            made.begin(job_key(number), {uuid: size * GIB})
            living[number] = uuid
        else:
            made.end(job_key(number))
            living.pop(number, None)
        for device, reading in zip(made.devices, made.read([d.uuid for d in made.devices], 1), strict=True):
            tenants = [job for job, _ in reading.tenants]
            assert sorted(tenants) == sorted(job for job, at in living.items() if at == device.uuid)
            used = device.memory_bytes_reserved + sum(amount for _, amount in reading.tenants)
            assert reading.memory_bytes_used == used <= device.memory_bytes_total
            assert all(amount >= 0 for _, amount in reading.tenants)
            assert reading.utilization_percent == min(100, 40 * len(tenants))
