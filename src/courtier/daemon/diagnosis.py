"""`doctor`: what is there, what is wrong with it, and what to do. Reads only."""

import os
import shutil
import sys

from courtier.daemon.broker import Broker, now_ms
from courtier.engine.picture import holder_of
from courtier.metering.health import degraded

DISK_BYTES_LOW = 1 << 30


def diagnose(broker: Broker) -> list[dict[str, str | None]]:
    """One entry a check: name, verdict (ok, warn, fail), what was found, what to do."""
    return [
        *_gpus(broker),
        *_health(broker),
        *_attribution(broker),
        _readings(broker),
        _isolation(broker),
        _enforcement(broker),
        *_installation(),
        _disk(broker),
        _queue(broker),
    ]


def _entry(name: str, verdict: str, text: str, advice: str | None = None) -> dict[str, str | None]:
    return {"name": name, "verdict": verdict, "text": text, "advice": advice}


def _gpus(broker: Broker) -> list[dict[str, str | None]]:
    box = broker.box
    count = len(box.devices)
    if box.simulated is not None:
        return [_entry("gpus", "ok", f"{count} simulated GPUs ({box.simulated})")]
    absent = [_entry("gpus", "fail", text) for text in box.absent]
    if box.driver == "ok" and count:
        return [_entry("gpus", "ok", box.driver_text or f"{count} GPUs"), *absent]
    found = box.driver_text or "no GPUs"
    advice = "jobs without GPUs run; courtier up --simulate 8xA100-80GB shows GPU scheduling on this machine"
    # A machine without a driver may be meant so; one whose driver does not answer is not.
    verdict = "warn" if box.driver in ("ok", "no_library") else "fail"
    return [_entry("gpus", verdict, found, advice), *absent]


# What a person can do about a GPU that is set aside, by the reason's code.
ADVICE = {
    "gpu_fell_away": "restart the machine; have the card, its power and its slot checked if it comes again",
    "gpu_hung": "it comes back by itself once the driver answers; processes in state D that hold it need a restart",
    "gpu_reset_required": "nvidia-smi --gpu-reset -i INDEX once nothing uses it, or restart the machine",
    "gpu_xid": "do what the reason asks for; the GPU is taken back after the machine's next start",
    "gpu_unreclaimable": "the named job's processes still hold it: look for processes in state D",
    "driver_mismatch": "restart the machine; keep automatic upgrades off the driver (apt-mark hold)",
    "driver_failed": "nvidia-smi says what the driver refuses",
    "gpu_hot": "look after its fans and the air that it gets",
}


def _health(broker: Broker) -> list[dict[str, str | None]]:
    """One entry for each GPU that is set aside, degraded, or used from outside."""
    entries = []
    for device in broker.box.devices:
        name = f"gpu{device.index}"
        standing, reading = broker.loop.state.quarantines.get(device.uuid), broker.loop.readings.get(device.uuid)
        if standing is not None:
            text = f"set aside: it {standing.reason.text}"
            entries.append(_entry(name, "fail", text, ADVICE.get(standing.reason.code)))
        elif reading is not None:
            hot = degraded(reading, hot_celsius=broker.settings.gpu_hot_celsius)
            if hot is not None:
                entries.append(_entry(name, "warn", f"it {hot.text}", ADVICE[hot.code]))
            if reading.external:
                text = f"used from outside Courtier by {holder_of(reading)}"
                entries.append(_entry(name, "warn", text, "jobs wait for that memory; let the process's owner know"))
    return entries


def _attribution(broker: Broker) -> list[dict[str, str | None]]:
    if not getattr(broker.telemetry, "attribution_unavailable", False):
        return []
    text = "whose the processes on the GPUs are can not be told: the driver's pids are those of another namespace"
    return [_entry("attribution", "fail", text, "run the broker with the machine's process ids (--pid=host)")]


def _readings(broker: Broker) -> dict[str, str | None]:
    readings = broker.loop.readings
    silent = [device.index for device in broker.box.devices if device.uuid not in readings]
    if silent:
        return _entry("telemetry", "fail", f"no reading of GPU {', '.join(map(str, silent))}", "courtier gpus")
    if not readings:
        return _entry("telemetry", "ok", "nothing to read")
    age_ms = now_ms() - min(reading.at_ms for reading in readings.values())
    return _entry("telemetry", "ok", f"all GPUs read, the oldest reading is {age_ms} ms old")


def _isolation(broker: Broker) -> dict[str, str | None]:
    return _entry("isolation", "ok", f"{broker.box.isolation}: {broker.box.isolation_reason or 'as asked'}")


def _enforcement(broker: Broker) -> dict[str, str | None]:
    level = broker.box.enforcement
    if level.startswith("cgroup"):
        return _entry("cpu_memory", "ok", f"CPU and memory limits are held by {level}")
    return _entry(
        "cpu_memory",
        "warn",
        f"no writable cgroup: memory limits are held by {level}, CPU limits are not held",
        "run the broker as root, or give its user a delegated cgroup (systemd: Delegate=yes)",
    )


def _installation() -> list[dict[str, str | None]]:
    """Root's broker serves users whose jobs call its srun: they must be able to run its Python."""
    closed = closed_to_others(sys.executable) if os.geteuid() == 0 else None
    if closed is None:
        return []
    text = f"other users can not run {sys.executable}: {closed} is closed to them, so srun fails in their jobs"
    return [_entry("installation", "warn", text, "install Courtier where every user can read it, as in /opt")]


def closed_to_others(program: str) -> str | None:
    """The first folder on the way to a program, or the program, that others may not pass; None when they may."""
    for path in (os.path.realpath(program), program):
        parts = path.split("/")
        for length in range(2, len(parts) + 1):
            part = "/".join(parts[:length])
            if not os.stat(part).st_mode & 0o001:
                return part
    return None


def _disk(broker: Broker) -> dict[str, str | None]:
    free = shutil.disk_usage(os.fspath(broker.home)).free
    if free < DISK_BYTES_LOW:
        return _entry("disk", "warn", f"{free >> 20} MiB free for state and logs", f"free space at {broker.home}")
    return _entry("disk", "ok", f"{free >> 30} GiB free for state and logs")


def _queue(broker: Broker) -> dict[str, str | None]:
    state = broker.loop.state
    waiting = len(state.jobs) - len(state.holding)
    return _entry("queue", "ok", f"{len(state.holding)} jobs started, {waiting} waiting")
