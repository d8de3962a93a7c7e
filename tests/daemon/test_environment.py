"""The environment of a job: GPUs only as given, nothing of another scheduler's, and log paths by pattern."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courtier.daemon.environment import DROPPED, expand_pattern, job_environment, log_paths
from courtier.domain.lifecycle import JobState
from courtier.domain.workloads import Job, Request
from makers import GIB, make_allocation, make_box, make_job, make_share, make_spec

HOME = Path("/srv/courtier")
BOX = make_box()
names = st.sampled_from(
    [
        *sorted(DROPPED),
        b"SLURM_JOB_ID",
        b"SLURMD_X",
        b"COURTIER_JOB_ID",
        b"COURTIER_ARRAY_INDEX",
        b"PATH",
        b"A",
        b"\xff",
    ]
)


def running(*shares: object, **fields: object) -> Job:
    allocation = make_allocation(*shares, master_port=20_001 if len(shares) > 1 else None)  # type: ignore[arg-type]
    return make_job(1234, JobState.RUNNING, allocation=allocation, **fields)  # type: ignore[arg-type]


def env_of(job: Job, submitted: dict[bytes, bytes] | None = None) -> dict[bytes, bytes]:
    pairs = job_environment(job, (submitted or {}).items(), BOX, home=HOME)
    assert list(pairs) == sorted(pairs) and len(dict(pairs)) == len(pairs)
    return dict(pairs)


@given(st.dictionaries(names, st.binary(max_size=8)), st.integers(0, 3))
def test_gpus_are_only_those_that_were_given(submitted: dict[bytes, bytes], count: int) -> None:
    found = env_of(running(*(make_share(n) for n in range(count))), submitted)
    given_uuids = ",".join(f"GPU-{n}" for n in range(count)).encode()
    assert found[b"CUDA_VISIBLE_DEVICES"] == found[b"COURTIER_GPU_UUIDS"] == given_uuids
    assert (found[b"COURTIER_JOB_ID"], found[b"SLURM_JOB_ID"]) == (b"1234", b"1234")
    assert not {b"NVIDIA_VISIBLE_DEVICES", b"SLURMD_X", b"COURTIER_ARRAY_INDEX", b"CUDA_MPS_LOG_DIRECTORY"} & set(found)
    for name in (b"A", b"\xff"):
        assert found.get(name) == submitted.get(name)
    assert found[b"PATH"].startswith(b"/srv/courtier/bin:")


def test_indices_where_they_were_asked_for() -> None:
    found = env_of(running(make_share(2), make_share(0), spec=make_spec(visible="index")))
    assert (found[b"CUDA_VISIBLE_DEVICES"], found[b"SLURM_JOB_GPUS"]) == (b"2,0", b"2,0")


@pytest.mark.parametrize(
    ("submitted", "kept"),
    [
        ({b"WORLD_SIZE": b"4"}, {}),
        ({b"WORLD_SIZE": b"4", b"RANK": b"1"}, {b"WORLD_SIZE": b"4", b"RANK": b"1"}),
        ({b"RANK": b"1"}, {b"RANK": b"1"}),
    ],
)
def test_half_a_rendezvous_is_not_taken_over(submitted: dict[bytes, bytes], kept: dict[bytes, bytes]) -> None:
    found = env_of(running(), submitted)
    assert {name: found[name] for name in (b"WORLD_SIZE", b"RANK") if name in found} == kept


def test_several_gpus_have_a_rendezvous_and_one_has_none() -> None:
    several, one = env_of(running(make_share(0), make_share(1))), env_of(running(make_share(0)))
    assert (several[b"MASTER_PORT"], several[b"PET_NPROC_PER_NODE"]) == (b"20001", b"2")
    assert b"MASTER_PORT" not in one


def test_an_array_element_a_retry_and_memory_are_told() -> None:
    spec = make_spec(Request(cpus=8, memory_bytes=3 * GIB), ntasks=2)
    job = running(
        make_share(0, size_gib=20, whole=False), spec=spec, array_id=9, array_index=4, array_size=5, attempt=3
    )
    found = env_of(job)
    told = {
        b"SLURM_ARRAY_JOB_ID": b"9",
        b"SLURM_ARRAY_TASK_ID": b"4",
        b"SLURM_ARRAY_TASK_COUNT": b"5",
        b"COURTIER_ARRAY_INDEX": b"4",
        b"COURTIER_RESTART_COUNT": b"2",
        b"SLURM_MEM_PER_NODE": b"3072",
        b"SLURM_CPUS_PER_TASK": b"4",
        b"COURTIER_GPU_MEMORY_BYTES": str(20 * GIB).encode(),
    }
    assert {name: found.get(name) for name in told} == told


ELEMENT = make_job(12, array_id=9, array_index=4, spec=make_spec(name="a/b"))


@pytest.mark.parametrize(
    ("pattern", "job", "path"),
    [
        ("%A_%a.out", ELEMENT, "9_4.out"),
        ("%A_%a", make_job(12), "12_4294967294"),
        ("%j-%u-%N", ELEMENT, "12-ada-box"),
        ("%x", ELEMENT, "a_b"),
        ("100%%j", ELEMENT, "100%j"),
        ("%q%", ELEMENT, "%q%"),
        ("%%%j", ELEMENT, "%12"),
    ],
)
def test_patterns_are_those_of_slurm(pattern: str, job: Job, path: str) -> None:
    assert expand_pattern(pattern, job, "box") == path


OWN = b"/srv/courtier/logs/1/1234/2"


@pytest.mark.parametrize(
    ("stdout", "stderr", "paths"),
    [
        (None, None, (OWN + b".out", OWN + b".err")),
        ("o.txt", None, (b"/home/ada/o.txt", b"/home/ada/o.txt")),
        ("/tmp/o", "e-%j", (b"/tmp/o", b"/home/ada/e-1234")),
        (None, "e", (OWN + b".out", b"/home/ada/e")),
    ],
)
def test_where_output_goes(stdout: str | None, stderr: str | None, paths: tuple[bytes, bytes]) -> None:
    job = make_job(1234, attempt=3, spec=make_spec(stdout=stdout, stderr=stderr))
    assert log_paths(job, HOME, "box", attempt=2) == paths
