"""The environment and the log paths of a job's process. Pure: what was submitted, plus what was given.

Nothing comes from the daemon's own environment. Variables that choose GPUs are always Courtier's:
an inherited CUDA_VISIBLE_DEVICES would open GPUs that belong to others.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from courtier.domain.devices import Box
from courtier.domain.workloads import Job

Pairs = Iterable[tuple[bytes, bytes]]

# Device choice and a foreign scheduler's job: never taken over from the submitter.
DROPPED = frozenset(
    {
        b"CUDA_VISIBLE_DEVICES",
        b"CUDA_DEVICE_ORDER",
        b"NVIDIA_VISIBLE_DEVICES",
        b"HIP_VISIBLE_DEVICES",
        b"ROCR_VISIBLE_DEVICES",
        b"GPU_DEVICE_ORDINAL",
        b"CUDA_MPS_PIPE_DIRECTORY",
        b"CUDA_MPS_LOG_DIRECTORY",
        b"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        b"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        b"COURTIER_BOOT_ID",
    }
)
DROPPED_PREFIXES = (b"SLURM_", b"SLURMD_", b"COURTIER_JOB_", b"COURTIER_ARRAY_")


def job_environment(job: Job, submitted: Pairs, box: Box, *, home: Path) -> tuple[tuple[bytes, bytes], ...]:
    """Name and value pairs for the process, sorted by name."""
    environment = {
        name: value for name, value in submitted if name not in DROPPED and not name.startswith(DROPPED_PREFIXES)
    }
    if b"WORLD_SIZE" in environment and b"RANK" not in environment:
        del environment[b"WORLD_SIZE"]
    given = _device_variables(job) | _job_variables(job, home) | _slurm_variables(job, box) | _rendezvous(job)
    environment.update({name.encode(): value.encode("utf-8", "surrogateescape") for name, value in given.items()})
    shims = os.fsencode(home / "bin")
    path = environment.get(b"PATH", b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    environment[b"PATH"] = shims + b":" + path
    return tuple(sorted(environment.items()))


def _device_variables(job: Job) -> dict[str, str]:
    devices = job.allocation.devices if job.allocation is not None else ()
    if job.allocation is not None and job.allocation.isolation == "none":
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    by_index = job.spec.visible == "index"
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(share.index) if by_index else share.uuid for share in devices),
    }


def _job_variables(job: Job, home: Path) -> dict[str, str]:
    devices = job.allocation.devices if job.allocation is not None else ()
    variables = {
        "COURTIER_HOME": str(home),
        "COURTIER_JOB_ID": str(job.id),
        "COURTIER_JOB_NAME": job.spec.name,
        "COURTIER_ATTEMPT": str(job.attempt),
        "COURTIER_RESTART_COUNT": str(job.attempt - 1),
        "COURTIER_GPUS": str(len(devices)),
        "COURTIER_GPU_UUIDS": ",".join(share.uuid for share in devices),
    }
    if devices:
        variables["COURTIER_GPU_MEMORY_BYTES"] = str(min(share.memory_bytes for share in devices))
    if job.array_index is not None:
        variables["COURTIER_ARRAY_ID"] = str(job.array_id)
        variables["COURTIER_ARRAY_INDEX"] = str(job.array_index)
    return variables


def _slurm_variables(job: Job, box: Box) -> dict[str, str]:
    devices = job.allocation.devices if job.allocation is not None else ()
    request, spec = job.spec.request, job.spec
    variables = {
        "SLURM_JOB_ID": str(job.id),
        "SLURM_JOBID": str(job.id),
        "SLURM_JOB_NAME": spec.name,
        "SLURM_JOB_USER": spec.user,
        "SLURM_JOB_PARTITION": spec.queue,
        "SLURM_SUBMIT_DIR": os.fsdecode(spec.directory),
        "SLURM_NTASKS": str(spec.ntasks),
        "SLURM_NPROCS": str(spec.ntasks),
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_NNODES": "1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_NODELIST": box.hostname,
        "SLURM_NODELIST": box.hostname,
        "SLURMD_NODENAME": box.hostname,
        "SLURM_CPUS_ON_NODE": str(request.cpus),
        "SLURM_CPUS_PER_TASK": str(max(1, request.cpus // max(1, spec.ntasks))),
        "SLURM_GPUS_ON_NODE": str(len(devices)),
        "SLURM_RESTART_COUNT": str(job.attempt - 1),
    }
    if devices:
        variables["SLURM_JOB_GPUS"] = ",".join(str(share.index) for share in devices)
    if request.memory_bytes is not None:
        variables["SLURM_MEM_PER_NODE"] = str(request.memory_bytes >> 20)
    if job.array_index is not None:
        variables["SLURM_ARRAY_JOB_ID"] = str(job.array_id)
        variables["SLURM_ARRAY_TASK_ID"] = str(job.array_index)
        variables["SLURM_ARRAY_TASK_COUNT"] = str(job.array_size)
    return variables


def _rendezvous(job: Job) -> dict[str, str]:
    """torchrun reads PET_*; RANK and WORLD_SIZE are left to the launcher, which sets both or neither."""
    allocation = job.allocation
    if allocation is None or allocation.master_port is None:
        return {}
    port = str(allocation.master_port)
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": port,
        "PET_NNODES": "1",
        "PET_NPROC_PER_NODE": str(len(allocation.devices)),
    }


def expand_pattern(pattern: str, job: Job, hostname: str) -> str:
    """Slurm's file name patterns: %j %A %a %x %u %N %%; others stay as they are."""
    words = {
        "j": str(job.id),
        "A": str(job.array_id or job.id),
        "a": str(job.array_index if job.array_index is not None else 4294967294),
        "x": job.spec.name.replace("/", "_"),
        "u": job.spec.user,
        "N": hostname,
        "%": "%",
    }
    out, place = [], 0
    while place < len(pattern):
        if pattern[place] == "%" and place + 1 < len(pattern) and pattern[place + 1] in words:
            out.append(words[pattern[place + 1]])
            place += 2
        else:
            out.append(pattern[place])
            place += 1
    return "".join(out)


def log_paths(job: Job, home: Path, hostname: str, *, attempt: int | None = None) -> tuple[bytes, bytes]:
    """Files of stdout and stderr: the user's (stderr joins stdout unless named), else Courtier's own of the attempt."""
    own = home / "logs" / str(job.id // 1000) / str(job.id)
    number = attempt or job.attempt
    if job.spec.stdout is None and job.spec.stderr is None:
        return os.fsencode(own / f"{number}.out"), os.fsencode(own / f"{number}.err")

    def named(pattern: str) -> bytes:
        expanded = expand_pattern(pattern, job, hostname).encode("utf-8", "surrogateescape")
        return os.path.join(job.spec.directory, expanded)

    stdout = named(job.spec.stdout) if job.spec.stdout is not None else os.fsencode(own / f"{number}.out")
    return stdout, named(job.spec.stderr) if job.spec.stderr is not None else stdout


def log_owners(job: Job) -> tuple[bool, bool]:
    """Whether the user named the file of stdout, of stderr (which joins stdout unless named)."""
    stdout = job.spec.stdout is not None
    return stdout, job.spec.stderr is not None or stdout
