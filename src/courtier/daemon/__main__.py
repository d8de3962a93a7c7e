"""The detached broker's process, started by `up --detach` only: HOME READY_FD and the flags of `up`."""

import argparse
import os
import sys
from pathlib import Path

from courtier.daemon.home import lock_home
from courtier.daemon.main import box_of, listen_address, serve_box
from courtier.daemon.settings import load_settings


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("ready_fd", type=int)
    parser.add_argument("--simulate")
    parser.add_argument("--listen")
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    os.umask(0o077)
    lock = lock_home(arguments.home)
    if lock is None:
        sys.stderr.write(f"another broker holds {arguments.home}\n")
        return 1
    settings = load_settings(arguments.home, dict(word.split("=", 1) for word in arguments.set))
    box = box_of(arguments.home, arguments.simulate)
    return serve_box(arguments.home, box, settings, listen_address(arguments.listen), ready_fd=arguments.ready_fd)


if __name__ == "__main__":
    sys.exit(main())
