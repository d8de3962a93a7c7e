"""Tables and words for people. Takes what the API said; computes nothing new and asks nobody."""

import csv
import io
import sys
import time
from typing import Any

from courtier.domain.amounts import words_of_bytes, words_of_ms

Row = list[str]


def table(header: Row, rows: list[Row]) -> str:
    """Columns padded to their widest cell; the last one is not padded."""
    cells = [header, *rows]
    widths = [max(len(row[place]) for row in cells) for place in range(len(header))]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(lines) + "\n"


def csv_text(header: Row, rows: list[Row]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    return out.getvalue()


def clean(text: str) -> str:
    """Control characters could move the cursor of whoever reads a list: they are shown, not sent."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def job_number(job: dict[str, Any]) -> str:
    return str(job["id"]) if job["array_id"] is None else f"{job['array_id']}_{job['array_index']}"


def running_ms(job: dict[str, Any], now_ms: int) -> int | None:
    if job["started_ms"] is None:
        return None
    return max(0, int(job["finished_ms"] or now_ms) - int(job["started_ms"]))


def request_words(job: dict[str, Any]) -> str:
    """GPUs asked for: "2", "2xA100", "18 GiB", "150 GiB split"."""
    request = job["request"]
    memory = words_of_bytes(request["gpu_memory_bytes"]) if request["gpu_memory_bytes"] else ""
    if request["split"]:
        return f"{memory} split"
    count = request["gpus"]
    if not count and not memory:
        return "-"
    model = f"x{request['gpu_model']}" if request["gpu_model"] else ""
    words = f"{count}{model}" if count else ""
    return f"{words or '1'}x{memory}" if memory and not model else " ".join(filter(None, [words, memory]))


def place_words(job: dict[str, Any]) -> str:
    allocation = job["allocation"]
    if allocation is None:
        return "-"
    gpus = ",".join(str(gpu["index"]) for gpu in allocation["gpus"])
    return f"gpu {gpus}" if gpus else "cpu"


def reason_words(job: dict[str, Any]) -> str:
    return clean(job["reason"]["text"]) if job["reason"] is not None else ""


JOB_HEADER = ["JOB", "NAME", "USER", "QUEUE", "ST", "TIME", "GPUS", "CPUS", "WHERE", "REASON"]


def job_row(job: dict[str, Any], now_ms: int) -> Row:
    ran = running_ms(job, now_ms)
    return [
        job_number(job),
        clean(job["name"])[:24],
        clean(job["user"]),
        clean(job["queue"])[:12],
        "H" if job["state"] == "held" else job["state_code"],
        words_of_ms(ran) if ran is not None else "-",
        request_words(job),
        str(job["request"]["cpus"]),
        place_words(job),
        reason_words(job),
    ]


def instant(at_ms: int | None) -> str:
    if at_ms is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000)) + f".{at_ms % 1000:03d}"


def bar(part: int, whole: int, width: int = 20) -> str:
    filled = 0 if not whole else min(width, round(part * width / whole))
    return "#" * filled + "." * (width - filled)


GPU_HEADER = ["GPU", "MODEL", "STATE", "MODE", "MEMORY", "", "UTIL", "TEMP", "JOBS"]


def gpu_row(gpu: dict[str, Any]) -> Row:
    used, total = gpu["memory_bytes_used"], gpu["memory_bytes_total"]
    known = used is not None and total is not None
    jobs = ", ".join(f"{tenant['job']} ({words_of_bytes(tenant['memory_bytes'])})" for tenant in gpu["tenants"])
    return [
        str(gpu["index"]),
        gpu["model"],
        gpu["state"],
        gpu["mode"] or "-",
        f"[{bar(used, total)}]" if known else "no reading",
        f"{words_of_bytes(used)} / {words_of_bytes(total)}" if known else "-",
        f"{gpu['utilization_percent']}%" if gpu["utilization_percent"] is not None else "-",
        f"{gpu['temperature_celsius']}C" if gpu["temperature_celsius"] is not None else "-",
        jobs or "-",
    ]


def gpu_notes(gpu: dict[str, Any]) -> str:
    """What deserves a sentence below the table: its health, and who uses it from outside."""
    lines = []
    if gpu["health"]["reason"] is not None:
        text = clean(gpu["health"]["reason"]["text"])
        lines.append(f"GPU {gpu['index']} is {gpu['health']['verdict']}: it {text}\n")
    for process in gpu["external"]:
        size = words_of_bytes(process["memory_bytes"]) if process["memory_bytes"] is not None else "unknown memory"
        user, command = clean(process["user"] or "unknown user"), clean(process["command"] or "unknown command")
        lines.append(f"GPU {gpu['index']} outside Courtier: {size} by pid {process['pid']} of {user} ({command})\n")
    return "".join(lines)


def job_page(job: dict[str, Any], log_tail: str) -> str:
    """One job for a person: asked, given, what happened, the end of its output."""
    request, allocation = job["request"], job["allocation"]
    lines = [
        f"job {job_number(job)} ({job['id']})  {clean(job['name'])}  {job['state']}",
        f"  user {clean(job['user'])}, queue {clean(job['queue'])}, class {job['class']}, priority {job['priority']}",
        f"  command    {clean(' '.join(job['command']))[:500]}",
        f"  directory  {clean(job['directory'])}",
        f"  asked      GPUs {request_words(job)}, CPUs {request['cpus']}, memory "
        + (words_of_bytes(request["memory_bytes"]) if request["memory_bytes"] else "uncounted")
        + ", time "
        + (words_of_ms(request["time_limit_ms"]) if request["time_limit_ms"] else "unlimited"),
    ]
    if allocation is not None:
        gpus = ", ".join(f"{gpu['index']} ({gpu['model']})" for gpu in allocation["gpus"]) or "none"
        lines.append(f"  given      GPUs {gpus}; CPU and memory held by {allocation['enforcement']}")
        lines.append(f"  isolation  {allocation['isolation']}: {allocation['isolation_reason'] or 'as asked'}")
    if job["reason"] is not None:
        lines.append(f"  reason     {reason_words(job)}")
    lines.append(
        f"  attempt {job['attempt']}, pid {job['pid'] or '-'}, exit code {_or_dash(job['exit_code'])}, "
        f"signal {_or_dash(job['signal'])}"
    )
    lines += [f"  {what:<10} {instant(job[what + '_ms'])}" for what in ("submitted", "eligible", "started", "finished")]
    lines += [f"  stdout     {job['stdout_path']}", f"  stderr     {job['stderr_path']}"]
    if log_tail:
        lines += ["  last output", *(f"    {clean(line)}" for line in log_tail.splitlines())]
    return "\n".join(lines) + "\n"


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def write(text: str) -> None:
    """Text to stdout, whatever it contains."""
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.flush()
