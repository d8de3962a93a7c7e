"""From a placed job to what its supervisor is told."""

import os
from pathlib import Path

from courtier.daemon.access import owner_of
from courtier.daemon.environment import job_environment, log_owners, log_paths
from courtier.daemon.payload import Payload
from courtier.daemon.settings import Settings
from courtier.domain.devices import Box
from courtier.domain.workloads import Job
from courtier.engine.ports import Fenced, Launch, Owner, PortError


def launch_of(job: Job, payload: Payload, box: Box, *, home: Path, settings: Settings) -> Launch:
    """Raises PortError when the script or the log folder cannot be written."""
    stdout, stderr = log_paths(job, home, box.hostname)
    users_stdout, users_stderr = log_owners(job)
    owner = owner_of(job.spec)
    own = home / "logs" / str(job.id // 1000) / str(job.id)
    try:
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        argv = job.spec.command
        if payload.script is not None:
            argv = (_script_file(home / "scripts" / str(job.id), payload.script, owner), *argv[1:])
    except OSError as error:
        raise PortError("log_folder", f"{own}: {error.strerror}") from error
    request = job.spec.request
    return Launch(
        key=job.attempt_key,
        argv=argv,
        environment=job_environment(job, payload.environment, box, home=home),
        directory=job.spec.directory,
        stdout_path=stdout,
        stderr_path=stderr,
        append_logs=job.spec.append_logs or job.attempt > 1,
        log_bytes_max=settings.log_bytes_max,
        time_limit_ms=request.time_limit_ms,
        grace_ms=job.spec.grace_ms,
        warn_signal=job.spec.signal_number,
        warn_before_ms=job.spec.signal_before_ms,
        warn_leader_only=job.spec.signal_leader_only,
        cpus_milli=request.cpus * 1000,
        memory_bytes=request.memory_bytes,
        interactive=job.spec.interactive,
        attach_ms=settings.attach_ms,
        terminal=job.spec.terminal,
        umask=job.spec.umask,
        owner=owner,
        stdout_is_users=users_stdout,
        stderr_is_users=users_stderr,
        fenced=_fenced(job, box),
    )


def _fenced(job: Job, box: Box) -> Fenced | None:
    """Its own device nodes, where the job was given a fence. Raises PortError where a GPU has no known node."""
    allocation = job.allocation
    if allocation is None or allocation.isolation != "fence":
        return None
    minors = {device.uuid: device.minor for device in box.devices}
    own = []
    for share in allocation.devices:
        minor = minors.get(share.uuid)
        if minor is None:
            raise PortError("device_node_unknown", f"GPU {share.index} has no device node that is known")
        own.append(minor)
    return Fenced(tuple(own), simulated=box.simulated is not None)


def _script_file(folder: Path, script: bytes, owner: Owner | None) -> bytes:
    """The copy that runs, the user's own, in a folder that is not: it can not be swapped for something else.

    Made anew for every start: a job may have changed its own.
    """
    folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    folder.chmod(0o711)
    path = folder / "script"
    path.unlink(missing_ok=True)
    if not script.startswith(b"#!"):
        script = b"#!/bin/sh\n" + script
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o700)
    with os.fdopen(descriptor, "wb") as file:
        if owner is not None:
            os.fchown(descriptor, owner.uid, owner.gid)
        os.fchmod(descriptor, 0o700)
        file.write(script)
    return os.fsencode(path)
