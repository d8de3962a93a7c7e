"""The systemd unit of a machine's broker: started at boot, restarted when it fails, its jobs left alone by both.

Must never let the service manager kill supervisors: they and their jobs are in cgroups of their own, and KillMode
keeps it to the broker's process.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

UNIT_PATH = Path("/etc/systemd/system/courtier.service")
# Its presence is how systemd itself says that it runs the machine (sd_booted(3)).
SYSTEMD_MARK = Path("/run/systemd/system")

UNIT = """[Unit]
Description=Courtier GPU broker
After=network.target nvidia-persistenced.service

[Service]
Type=exec
ExecStart={command}
Environment=COURTIER_HOME={home}
Restart=on-failure
RestartSec=1
KillMode=process
Delegate=yes
LimitNOFILE=65536
TasksMax=infinity
OOMScoreAdjust=-500

[Install]
WantedBy=multi-user.target
"""


def _say(text: str) -> None:
    sys.stderr.write(f"courtier: {text}\n")


def unit_text(home: Path, simulate: str | None, listen: str | None, settings: dict[str, str]) -> str:
    """The unit for a broker on this home, run by this installation."""
    words = [sys.executable, "-m", "courtier.cli.main", "up"]
    words += ["--simulate", simulate] if simulate is not None else []
    words += ["--listen", listen] if listen is not None else []
    for name, value in sorted(settings.items()):
        words += ["--set", f"{name}={value}"]
    # systemd expands % and $ in these lines.
    command = shlex.join(words).replace("%", "%%").replace("$", "$$")
    return UNIT.format(command=command, home=str(home).replace("%", "%%"))


def install_service(home: Path, simulate: str | None, listen: str | None, settings: dict[str, str]) -> int:
    """Writes the unit, enables and starts it. Exit codes: 0 done, 1 not possible here, 4 not root."""
    if os.geteuid() != 0:
        _say("--install-service needs root: sudo courtier up --install-service")
        return 4
    text = unit_text(home, simulate, listen, settings)
    if not SYSTEMD_MARK.is_dir():
        _say(
            "systemd does not run this machine, so nothing was installed. Have your service manager start, as root: "
            "courtier up (and let it signal that one process only: jobs outlive it)"
        )
        return 1
    UNIT_PATH.write_text(text)
    UNIT_PATH.chmod(0o644)
    for words in (["systemctl", "daemon-reload"], ["systemctl", "enable", "--now", "courtier.service"]):
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            _say(f"{' '.join(words)} failed: {done.stderr.strip()}")
            return 1
    _say(f"the broker runs, and starts at boot ({UNIT_PATH}); users submit without any set-up")
    return 0
