"""The flags of a job: one table for the command line and for #SBATCH and #courtier lines. Parses; builds no request."""

import argparse

# Slurm options that mean nothing on one box, or come later: taken, and warned of once.
IGNORED = {
    "--account": "-A",
    "--qos": None,
    "--mail-type": None,
    "--mail-user": None,
    "--exclusive": None,
    "--constraint": "-C",
    "--nodelist": "-w",
    "--exclude": "-x",
    "--reservation": None,
    "--licenses": "-L",
    "--gpu-bind": None,
    "--cpu-bind": None,
    "--hint": None,
    "--distribution": "-m",
    "--open-mode": None,
    "--profile": None,
    "--requeue": None,
    "--no-requeue": None,
    "--export-file": None,
    "--get-user-env": None,
    "--wckey": None,
}
FLAGS_WITHOUT_VALUE = frozenset({"--exclusive", "--requeue", "--no-requeue", "--get-user-env"})


def add_job_flags(parser: argparse.ArgumentParser, *, script: bool = False) -> None:
    """All flags of a job. In scripts Slurm's short names hold: -o and -e are log files, -q is the QOS."""
    add = parser.add_argument
    add("--gpus", "-G", help="whole GPUs: 2 or a100:2")
    add("--gres", help="Slurm's form: gpu:a100:2")
    add("--gpus-per-node", help="the same as --gpus on one box")
    add("--gpus-per-task", help="GPUs for each of --ntasks")
    add("--gpu-mem", "--gpu-memory", help="GPU memory, per GPU: the GPU is shared with others")
    add("--split", action="store_true", default=None, help="spread --gpu-mem over as few GPUs as hold it")
    add("--gpu-model", help="only GPUs of this model")
    add("--mig", help="a MIG profile, as 2g.10gb")
    add("--cpus", "-c", "--cpus-per-task", type=int, help="CPUs (for each task)")
    add("--mem", help="memory, as 32G")
    add("--mem-per-cpu", help="memory for each CPU")
    add("--ntasks", "-n", type=int, help="tasks that srun starts")
    add("--ntasks-per-node", type=int, help="the same as --ntasks on one box")
    add("--nodes", "-N", help="1: there is one machine here")
    add("--time", "-t", help="time limit: 90m, 2h, HH:MM:SS, D-HH:MM")
    add("--name", "-J", "--job-name", help="the job's name")
    add("--queue", "-p", "--partition", help="the queue")
    add("--class", dest="job_class", help="training, inference, batch or interactive")
    add("--chdir", "-D", help="working directory")
    add("--output", *(["-o"] if script else []), help="file of stdout (%%j %%x %%u %%A %%a %%N)")
    add("--error", *(["-e"] if script else []), help="file of stderr")
    add("--array", *(["-a"] if script else []), help="0-9, 0-9%%2, 1,3,5, 0-20:5")
    add("--dependency", "-d", help="afterok:12:13,afterany:14,afternotok:15")
    add("--begin", "-b", help="not before: now+1hour, 16:30")
    add("--hold", "-H", action="store_true", default=None, help="wait until released")
    add("--priority", type=int, help="higher goes first")
    add("--nice", type=int, help="lowers the priority by so much")
    add("--retries", type=int, help="attempts after the first")
    add("--retry-on", help="failed,oom,timeout,gpu-lost,node-lost")
    add("--key", help="a second submit under the same key gives the first job")
    add("--grace", help="from TERM to KILL (default 30s)")
    add("--signal", help="a warning before the time limit: [B:]USR1@300")
    add("--export", help="ALL, NONE, or A,B=1")
    add("--label", action="append", help="name=value")
    add("--comment", help="words for people")
    add("--sim-use", help="what it seems to use on a simulated box: 17G,60%%")
    add("--visible", choices=("uuid", "index"), help="what CUDA_VISIBLE_DEVICES names GPUs by")
    add("--isolation", help="fence, env, none, or any: the best that this box has (default)")
    for name, short in IGNORED.items():
        names = [name, short] if short and script else [name]
        if name in FLAGS_WITHOUT_VALUE:
            add(*names, dest=_ignored(name), action="store_const", const="", help=argparse.SUPPRESS)
        else:
            add(*names, dest=_ignored(name), help=argparse.SUPPRESS)
    if script:
        add("-q", dest=_ignored("--qos"), help=argparse.SUPPRESS)


def _ignored(name: str) -> str:
    return "ignored_" + name.strip("-").replace("-", "_")


def ignored_given(arguments: argparse.Namespace) -> list[str]:
    """The flags that were given and mean nothing here."""
    return [name for name in IGNORED if getattr(arguments, _ignored(name), None) is not None]
