"""`srun` inside a job: starts the job's tasks in its own allocation, and ends with the highest of their codes.

It asks nobody: what the job was given is in its environment. Options that choose resources are taken and
ignored, since the allocation is made.
"""

import os
import subprocess
import sys

# Slurm options with a value that may stand before the command.
VALUE_FLAGS = frozenset(
    {"-N", "-c", "-G", "-t", "-J", "-p", "-o", "-e", "-D"}
    | {"--nodes", "--cpus-per-task", "--gpus", "--gres", "--mem", "--mem-per-cpu", "--time", "--job-name"}
    | {"--partition", "--gpus-per-task", "--gpus-per-node", "--cpu-bind", "--gpu-bind", "--mpi", "--output"}
    | {"--error", "--chdir", "--export"}
)


def tasks_and_command(argv: list[str], default: int) -> tuple[int, list[str]]:
    """How many tasks, and the command. Raises ValueError."""
    tasks, place = default, 0
    while place < len(argv) and argv[place].startswith("-"):
        word = argv[place]
        name, equals, value = word.partition("=")
        place += 1
        if word == "--":
            break
        if name in ("-n", "--ntasks") or (name.startswith("-n") and name[2:].isdigit()):
            if name not in ("-n", "--ntasks"):
                value = name[2:]
            elif not equals:
                value, place = (argv[place] if place < len(argv) else ""), place + 1
            tasks = int(value)
        elif name in VALUE_FLAGS and not equals:
            place += 1
    if place >= len(argv):
        raise ValueError("srun: no command")
    return tasks, argv[place:]


def main(argv: list[str] | None = None) -> int:
    try:
        default = int(os.environ.get("SLURM_NTASKS", "1"))
        tasks, command = tasks_and_command(sys.argv[1:] if argv is None else argv, default)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    running = []
    for rank in range(tasks):
        variables = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NTASKS": str(tasks)}
        try:
            running.append(subprocess.Popen(command, env={**os.environ, **variables, "SLURM_STEP_ID": "0"}))
        except OSError as error:
            sys.stderr.write(f"srun: {command[0]}: {error.strerror}\n")
            return 127 if isinstance(error, FileNotFoundError) else 126
    codes = [process.wait() for process in running]
    return max(code if code >= 0 else 128 - code for code in codes)


if __name__ == "__main__":
    sys.exit(main())
