"""Device nodes that the driver makes only when somebody first asks: asked for here, since a fenced job can not.

The driver's own helper makes them. Best effort: what is missing is told by the level of isolation.
"""

import os
import subprocess

# Each with the helper's flags that make it.
NODES = (("/dev/nvidia-uvm", ["-u", "-c=0"]), ("/dev/nvidia-modeset", ["-m"]))
HELPER = "/usr/bin/nvidia-modprobe"
SECONDS_MAX = 10


def make_control_nodes() -> None:
    """As root, on a machine that has the helper."""
    if os.geteuid() != 0 or not os.access(HELPER, os.X_OK):
        return
    for path, flags in NODES:
        if not os.path.exists(path):
            try:
                subprocess.run([HELPER, *flags], check=False, capture_output=True, timeout=SECONDS_MAX)
            except (OSError, subprocess.TimeoutExpired):
                return
