"""`courtier up`: brings a broker to life in the foreground or detached, and says why when it cannot.

Exit codes: 0 it runs (or ran and was stopped), 1 it could not, 2 wrong usage. Must never leave a second
broker on one home.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from courtier.adapters.process.cgroup import probe
from courtier.adapters.process.fence_probe import FenceVerdict, probe_fence
from courtier.adapters.process.identity import boot_id as machine_boot_id
from courtier.adapters.simbox import parse_models, simulated_devices, simulated_host
from courtier.api.client import Client, NoBroker
from courtier.daemon.gpulock import answer_askers, claim_gpus
from courtier.daemon.home import lock_home, prepare_home
from courtier.daemon.inventory import Inventory, take_inventory
from courtier.daemon.nodes import make_control_nodes
from courtier.daemon.settings import SettingRefused, Settings, load_settings
from courtier.domain.devices import Box, Device
from courtier.engine.ports import PortError


def _say(text: str) -> None:
    sys.stderr.write(f"courtier: {text}\n")


def up(home: str, simulate: str | None, detach: bool, listen: str | None, settings: dict[str, str]) -> int:
    """Starts a broker on `home`; returns when it answers (detached) or has ended (foreground)."""
    path = Path(home).absolute()
    try:
        listen_at = listen_address(listen)
        checked = load_settings(path, settings)
        if simulate is not None:
            parse_models(simulate)
    except (SettingRefused, ValueError) as error:
        _say(str(error))
        return 2
    except PortError as error:
        _say(error.text)
        return 2
    # What a broker writes is its own unless it says otherwise, file by file.
    os.umask(0o077)
    try:
        prepare_home(path, sys.executable)
        lock = lock_home(path)
    except (PortError, OSError) as error:
        _say(str(error))
        return 1
    if lock is None:
        return _already_running(path, simulate)
    if detach:
        os.close(lock)
        return _detach(path, simulate, listen, settings)
    return serve_box(path, box_of(path, simulate), checked, listen_at)


def listen_address(listen: str | None) -> tuple[str, int] | None:
    if listen is None:
        return None
    host, _, port = listen.rpartition(":")
    if not port.isdigit() or not 0 <= int(port) < 65536:
        raise ValueError(f"--listen takes HOST:PORT, not {listen!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def box_of(home: Path, simulate: str | None) -> Box:
    """This machine, or a simulated one: GPUs, CPUs, memory, and what keeps jobs apart."""
    cpus = len(os.sched_getaffinity(0))
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if simulate is not None:
        simulated_cpus, simulated_bytes = simulated_host(simulate)
        cpus, memory_bytes = max(cpus, simulated_cpus), max(memory_bytes, simulated_bytes)
        inventory = Inventory(simulated_devices(simulate, str(home)), "simulated", f"simulated: {simulate}")
    else:
        inventory = take_inventory(home, machine_boot_id())
        if inventory.devices:
            make_control_nodes()
    fence = _fence_of(inventory.devices) if simulate is None else probe_fence()
    return Box(
        hostname=socket.gethostname(),
        cpus=cpus,
        memory_bytes=memory_bytes,
        devices=inventory.devices,
        simulated=simulate,
        isolation=fence.level,
        isolation_reason=fence.reason,
        enforcement=probe().memory,
        driver=inventory.status,
        driver_text=inventory.text,
        absent=inventory.absent,
    )


def _fence_of(devices: tuple[Device, ...]) -> FenceVerdict:
    """The fence of real GPUs, which needs their device nodes: those are what it gives to a job."""
    for device in devices:
        path = f"/dev/nvidia{device.minor}"
        if device.minor is None or not os.path.exists(path):
            return FenceVerdict("env", f"GPU {device.index} has no device node here ({path}), so none can be fenced")
    return probe_fence()


def _already_running(home: Path, simulate: str | None) -> int:
    try:
        health = Client(home).health()
    except NoBroker:
        _say(f"another broker holds {home} but does not answer yet")
        return 1
    asked = simulate or "real"
    if health.get("box") == asked:
        _say(f"already running: {asked}, pid {health.get('pid')}")
        return 0
    _say(f"a broker for another box runs here: {health.get('box')}, not {asked}. courtier down stops it")
    return 1


def _detach(home: Path, simulate: str | None, listen: str | None, settings: dict[str, str]) -> int:
    """Starts the broker in a session of its own and waits until it says that it answers."""
    ready, told = os.pipe()
    arguments = [sys.executable, "-m", "courtier.daemon", str(home), str(told)]
    arguments += ["--simulate", simulate] if simulate is not None else []
    arguments += ["--listen", listen] if listen is not None else []
    for name, value in settings.items():
        arguments += ["--set", f"{name}={value}"]
    log_path = home / "broker.log"
    with open(log_path, "ab") as log:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(told,),
            start_new_session=True,
            cwd="/",
        )
    os.close(told)
    with os.fdopen(ready, "rb") as pipe:
        word = pipe.readline()
    if word.startswith(b"ready"):
        # The child is the broker now and outlives this process: nobody waits for it.
        process.returncode = 0
        return 0
    code = process.wait()
    _say(f"the broker ended before it answered (exit code {code}): {_last_line(log_path)}")
    return code or 1


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return f"{lines[-1]} ({path})" if lines else f"see {path}"


def serve_box(
    home: Path, box: Box, settings: Settings, listen_at: tuple[str, int] | None, *, ready_fd: int | None = None
) -> int:
    """Runs the broker until it is told to stop."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    override = os.environ.get("COURTIER_BOOT_ID") if box.simulated is not None else None
    boot = override or machine_boot_id()
    try:
        asyncio.run(_serve(home, box, boot, settings, listen_at, ready_fd))
    except PortError as error:
        _say(error.text)
        return 1
    except OSError as error:
        _say(f"{error.strerror or error}: {error.filename or home}")
        return 1
    return 0


async def _serve(
    home: Path,
    box: Box,
    boot: str,
    settings: Settings,
    listen_at: tuple[str, int] | None,
    ready_fd: int | None,
) -> None:
    # Imported here: `up` on a running broker and its errors need none of it.
    from courtier.adapters.sqlite import SqliteStore
    from courtier.api.server import create_app, serve
    from courtier.daemon.backend import BrokerBackend
    from courtier.daemon.broker import Broker
    from courtier.daemon.token import api_token

    # Kept for the life of the broker: nobody else may place jobs on these GPUs.
    claim = claim_gpus() if box.simulated is None and box.devices else None
    if claim is not None:
        asyncio.get_running_loop().add_reader(claim, answer_askers, claim)
    broker = Broker(home, box, boot, settings, SqliteStore(home / "courtier.db"))
    stopped = asyncio.Event()
    backend = BrokerBackend(broker, stopped.set)
    token = api_token(home) if listen_at is not None else None
    server, sockets = serve(create_app(backend, token=token), home / "broker.sock", listen_at)
    await broker.start()
    serving = asyncio.create_task(server.serve(sockets=sockets))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    if ready_fd is not None and not serving.done():
        os.write(ready_fd, b"ready\n")
        os.close(ready_fd)
    waiting = asyncio.create_task(stopped.wait())
    await asyncio.wait({waiting, serving}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    server.should_exit = True
    server.force_exit = True
    await serving
    await broker.stop()
    if claim is not None:
        asyncio.get_running_loop().remove_reader(claim)
        claim.close()
    (home / "broker.sock").unlink(missing_ok=True)
