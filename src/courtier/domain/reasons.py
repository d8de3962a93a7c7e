"""Every reason that Courtier gives for waiting, refusing or ending: a closed set, each with its numbers.

A reason is made where the refusal is made, by `reason(code, ...)`, and only printed elsewhere.
A number whose name ends in `_bytes` or `_ms` is written for people in the text and kept exact as a field.
"""

import string
from dataclasses import dataclass

from courtier.domain.amounts import words_of_bytes, words_of_ms

Number = int | str


@dataclass(frozen=True, slots=True)
class ReasonKind:
    """slurm: the name that Slurm users know. impossible: no amount of waiting helps (exit code 2)."""

    text: str
    slurm: str
    impossible: bool = False


REASONS: dict[str, ReasonKind] = {
    # waiting
    "resources": ReasonKind("waits for {gpus} GPU(s): {gpus_free} of {gpus_total} free for it", "Resources"),
    "gpu_memory": ReasonKind(
        "waits for {needed_bytes} of GPU memory: the most free on one GPU is {free_bytes}", "Resources"
    ),
    "gpu_reclaiming": ReasonKind("waits for the memory of {gpus} GPU(s) to come back from ended jobs", "Resources"),
    "gpu_external": ReasonKind(
        "waits for {gpus} GPU(s) whose memory is used outside Courtier: {used_bytes} on GPU {index}, by {holder}",
        "Resources",
    ),
    "gpu_quarantined": ReasonKind("waits for {gpus} GPU(s) that are set aside: GPU {index} {why}", "ReqNodeNotAvail"),
    "cpus": ReasonKind("waits for {cpus} CPU(s): {cpus_free} of {cpus_total} free", "Resources"),
    "memory": ReasonKind("waits for {needed_bytes} of memory: {free_bytes} of {total_bytes} free", "Resources"),
    "priority": ReasonKind("waits behind job {ahead}, which has waited {waited_ms} for the same resources", "Priority"),
    "next": ReasonKind("is about to be placed", "None"),
    "dependency": ReasonKind("waits for {count} job(s), first job {first}", "Dependency"),
    "begin_time": ReasonKind("begins in {wait_ms} at the earliest", "BeginTime"),
    "array_limit": ReasonKind("array {array} runs {running} of {limit} at once", "JobArrayTaskLimit"),
    "user_gpus": ReasonKind("{user} holds {gpus} GPU(s), {limit} is the most for one user", "QOSMaxGRESPerUser"),
    "watch_only": ReasonKind("this broker only watches: courtier up without --watch-only schedules", "PartitionDown"),
    "job_held": ReasonKind("is held: courtier release {job}", "JobHeldUser"),
    "start_retry": ReasonKind(
        "start {tries} of {tries_max} was refused by this machine: {error}", "LaunchFailedRequeued"
    ),
    # ended
    "dependency_never": ReasonKind("depends on job {first}, which ended as {state}", "DependencyNeverSatisfied"),
    "cancelled_by_user": ReasonKind("cancelled by {user}", "None"),
    "client_gone": ReasonKind("its terminal went away", "None"),
    "nonzero_exit": ReasonKind("exit code {exit_code}", "NonZeroExitCode"),
    "killed_by_signal": ReasonKind("ended by signal {signal} ({signal_name})", "RaisedSignal"),
    "not_started": ReasonKind("the command could not be started: {error}", "NonZeroExitCode"),
    "start_refused": ReasonKind(
        "{tries} starts were refused by this machine, the last because: {error}", "JobLaunchFailure"
    ),
    "time_limit": ReasonKind("ran into its time limit of {limit_ms}", "TimeLimit"),
    "memory_limit": ReasonKind("killed {oom_kills} time(s) over its memory of {limit_bytes}", "OutOfMemory"),
    "memory_watch": ReasonKind("its processes together exceeded its memory of {limit_bytes}", "OutOfMemory"),
    "gpu_memory_overuse": ReasonKind("used {used_bytes} on a shared GPU, {declared_bytes} declared", "OutOfMemory"),
    "supervisor_lost": ReasonKind(
        "its supervisor died without leaving an exit record; its processes were ended", "NodeFail"
    ),
    "node_rebooted": ReasonKind("the machine started anew while it ran", "NodeFail"),
    "gpu_lost": ReasonKind("a GPU that it held fell away", "NodeFail"),
    "failed_after_xid": ReasonKind(
        "ended with {outcome} after the driver had reported Xid {xid} ({words})", "NonZeroExitCode"
    ),
    "preempted": ReasonKind("gave way to another job", "Preempted"),
    # GPUs
    "gpu_fell_away": ReasonKind("does not answer any more: the driver calls it lost", "NodeDown"),
    "gpu_hung": ReasonKind("does not answer in time: the driver hangs on it", "NodeDown"),
    "gpu_reset_required": ReasonKind("needs a reset before it works again", "NodeDown"),
    "gpu_xid": ReasonKind("reported Xid {xid} ({words}), which asks for {asks}", "NodeDown"),
    "gpu_unreclaimable": ReasonKind(
        "does not give its memory back: job {job} still holds {used_bytes} of it {waited_ms} after its end", "NodeDown"
    ),
    "driver_mismatch": ReasonKind(
        "can not be used until the machine starts anew: the driver's library and its kernel module differ", "NodeDown"
    ),
    "driver_failed": ReasonKind("can not be read: the driver refuses", "NodeDown"),
    "layout_busy": ReasonKind(
        "the new layout has no place for the {profile} at {start}, which is used by {holder}", "Resources"
    ),
    "layout_blocked": ReasonKind(
        "there would be room if the {profile} at {start} moved, which is used by {holder}", "Resources"
    ),
    "layout_impossible": ReasonKind("no layout of this GPU holds {profiles}", "BadConstraints", True),
    "gpu_hot": ReasonKind("is at {celsius} C, {hot_celsius} C is hot", "None"),
    # impossible
    "gpus_exceed_inventory": ReasonKind("{gpus} GPUs asked for, this box has {gpus_total}", "BadConstraints", True),
    "gpus_divided": ReasonKind(
        "{gpus} GPUs asked for, {divided} of the {gpus_total} here are divided by MIG and can not be used whole",
        "BadConstraints",
        True,
    ),
    "gpu_model_unknown": ReasonKind("no GPU of model {model} here: {models}", "BadConstraints", True),
    "gpus_of_model_exceed": ReasonKind(
        "{gpus} GPUs of {model} asked for, this box has {gpus_total}", "BadConstraints", True
    ),
    "gpu_memory_exceeds_card": ReasonKind(
        "{needed_bytes} of GPU memory asked for, the largest GPU here has {largest_bytes} for jobs: "
        "--split spreads it over several GPUs",
        "BadConstraints",
        True,
    ),
    "gpu_memory_exceeds_box": ReasonKind(
        "{needed_bytes} of GPU memory asked for, all GPUs here have {total_bytes} for jobs", "BadConstraints", True
    ),
    "gpu_memory_too_few_cards": ReasonKind(
        "{gpus} GPUs with {needed_bytes} each asked for, {gpus_total} GPU(s) here are large enough",
        "BadConstraints",
        True,
    ),
    "cpus_exceed_box": ReasonKind("{cpus} CPUs asked for, this box has {cpus_total}", "BadConstraints", True),
    "memory_exceeds_box": ReasonKind(
        "{needed_bytes} of memory asked for, this box has {total_bytes}", "BadConstraints", True
    ),
    "mig_not_here": ReasonKind(
        "no GPU here is partitioned: profile {profile} can not be given", "BadConstraints", True
    ),
    "user_gpus_exceed": ReasonKind(
        "{gpus} GPUs asked for, {limit} is the most that one user may hold", "QOSMaxGRESPerUser", True
    ),
    "gpu_milli_range": ReasonKind("{gpu_milli} milli-GPU asked for, a share is 1 to 1000", "BadConstraints", True),
    "invalid_request": ReasonKind("{problem}", "BadConstraints", True),
    "isolation_unavailable": ReasonKind("isolation {isolation} can not be given here: {why}", "BadConstraints", True),
    # refused operations
    "job_unknown": ReasonKind("no job or array {job}", "InvalidJobId"),
    "job_ended": ReasonKind("job {job} has ended already ({state})", "InvalidJobId"),
    "job_not_ended": ReasonKind("job {job} is {state}: only an ended or running job can be put back", "InvalidJobId"),
    "job_not_waiting": ReasonKind("job {job} is {state}: only a waiting job can be changed so", "InvalidJobId"),
    "dependency_unknown": ReasonKind("it depends on job {job}, which does not exist", "Dependency", True),
    "array_too_large": ReasonKind("an array of {size} jobs asked for, {limit} is the most", "BadConstraints", True),
    "queue_full": ReasonKind("{jobs} jobs wait already, {limit} is the most", "QOSMaxSubmitJobPerUserLimit"),
    "user_jobs": ReasonKind(
        "{user} has {jobs} jobs already that have not ended, {limit} is the most", "QOSMaxSubmitJobPerUserLimit"
    ),
    "store_refused": ReasonKind("the store refused to keep it: {error}", "None"),
}


class _Words(string.Formatter):
    """Writes amounts as people read them, by the unit at the end of the field's name."""

    def get_field(self, field_name: str, args: object, kwargs: object) -> tuple[object, str]:
        value = kwargs[field_name]  # type: ignore[index]
        if isinstance(value, int) and field_name.endswith("_bytes"):
            return words_of_bytes(value), field_name
        if isinstance(value, int) and field_name.endswith("_ms"):
            return words_of_ms(value), field_name
        return value, field_name


_WORDS = _Words()


@dataclass(frozen=True, slots=True)
class Reason:
    """A state of affairs with its numbers (name, value), in the order of the sentence."""

    code: str
    numbers: tuple[tuple[str, Number], ...] = ()

    @property
    def text(self) -> str:
        return _WORDS.vformat(REASONS[self.code].text, (), dict(self.numbers))

    @property
    def impossible(self) -> bool:
        return REASONS[self.code].impossible


def reason(code: str, **numbers: Number) -> Reason:
    """Makes a reason of the closed set. Raises KeyError for a code, or a number of its sentence, that is not there."""
    made = Reason(code, tuple(numbers.items()))
    missing = {name for _, name, _, _ in _WORDS.parse(REASONS[code].text) if name} - numbers.keys()
    if missing:
        raise KeyError(f"reason {code} needs {sorted(missing)}")
    return made
