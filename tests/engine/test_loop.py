"""The driver: a freed GPU is given on only after a look, and one step places all that has room."""

from courtier.domain.attempts import AttemptPhase
from courtier.domain.lifecycle import JobState
from courtier.domain.policy import Policy
from courtier.domain.workloads import Request
from courtier.engine.commands import ReadDevices
from courtier.engine.loop import Loop
from courtier.engine.state import State
from courtier.engine.stimuli import AttemptReported, DevicesRead, Ticked
from makers import BOOT, NOW, make_allocation, make_box, make_device, make_job, make_reading, make_share, make_status


def test_a_freed_gpu_waits_for_a_look_that_is_younger_than_the_end() -> None:
    ending = make_job(1, JobState.RUNNING, Request(gpus=1), allocation=make_allocation(make_share(0)))
    loop = Loop(make_box(make_device(0)), BOOT, state=State([ending, make_job(2, request=Request(gpus=1))], next_id=3))
    ended = AttemptReported(make_status(ending, AttemptPhase.ENDED, exit_code=0, finished_ms=NOW + 20))
    # Read before the end, with no memory to be seen: the GPU may have been about to be used again.
    outcome = loop.step([DevicesRead((make_reading(0, NOW + 19),)), ended], NOW + 30)
    assert loop.state.jobs[2].state is JobState.PENDING
    assert ReadDevices(("GPU-0",)) in outcome.commands
    loop.commit()
    loop.step([Ticked()], NOW + 40)
    assert loop.state.jobs[2].state is JobState.PENDING
    assert loop.reason_of(loop.state.jobs[2], NOW + 40).code == "gpu_reclaiming"  # type: ignore[union-attr]
    loop.commit()
    loop.step([DevicesRead((make_reading(0, NOW + 20),))], NOW + 50)
    assert loop.state.jobs[2].state is JobState.STARTING


def test_one_step_places_all_that_has_room_however_few_heads_it_sees() -> None:
    jobs = [make_job(number) for number in range(1, 12)]
    loop = Loop(make_box(cpus=9), BOOT, state=State(jobs, next_id=12), policy=Policy(heads_per_class=2))
    outcome = loop.step([Ticked()], NOW)
    placed = [event.job_id for event in outcome.events if event.kind == "placed"]
    assert placed == list(range(1, 10))
