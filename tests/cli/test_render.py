"""What people read: columns line up, nothing steers a terminal, no reading is not zero."""

import csv
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courtier.cli.render import GPU_HEADER, JOB_HEADER, bar, clean, csv_text, gpu_row, job_page, job_row, table
from courtier.domain.workloads import Request
from makers import GIB

cells = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp", "Zs"]), min_size=1, max_size=8)
grids = st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(cells, min_size=n, max_size=n), min_size=1, max_size=5))


@given(grids)
def test_every_column_begins_below_its_header(rows: list[list[str]]) -> None:
    header = [f"H{n}" for n in range(len(rows[0]))]
    lines = table(header, rows).split("\n")
    assert lines.pop() == "" and len(lines) == len(rows) + 1
    for place, name in enumerate(header):
        at = lines[0].index(name)
        for row, line in zip(rows, lines[1:], strict=True):
            assert line[at:].startswith(row[place])
            assert at == 0 or line[at - 1] == " "
    assert all(line == line.rstrip() for line in lines)


@given(
    st.lists(
        st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r")), min_size=2, max_size=2)
    )
)
def test_csv_is_read_back_as_it_was(rows: list[list[str]]) -> None:
    text = csv_text(["a", "b"], rows)
    assert list(csv.reader(io.StringIO(text, newline=""))) == [["a", "b"], *rows]


@given(st.text())
def test_nothing_steers_the_terminal(text: str) -> None:
    shown = clean(text)
    assert shown.isprintable()
    assert (shown == text) == text.isprintable()


@given(st.integers(0, 100), st.integers(0, 100))
def test_a_bar_has_its_width(part: int, whole: int) -> None:
    assert len(bar(part, whole)) == 20
    assert bar(whole, whole).count("#") == (20 if whole else 0)


def job(**fields: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {name: getattr(Request(), name) for name in Request.__slots__}
    made = {
        "id": 12,
        "array_id": None,
        "array_index": None,
        "name": "train",
        "user": "ada",
        "queue": "default",
        "class": "batch",
        "priority": 0,
        "state": "running",
        "state_code": "R",
        "command": ["python", "train.py"],
        "directory": "/home/ada",
        "attempt": 1,
        "pid": None,
        "exit_code": None,
        "signal": None,
        "submitted_ms": 1,
        "eligible_ms": 1,
        "started_ms": 1_000,
        "finished_ms": None,
        "allocation": None,
        "reason": None,
        "stdout_path": "/o",
        "stderr_path": "/e",
        **fields,
    }
    return {**made, "request": {**asked, **fields.get("request", {})}}


def cell(column: str, fields: dict[str, Any]) -> str:
    return dict(zip(JOB_HEADER, job_row(job(**fields), 61_000), strict=True))[column]


@pytest.mark.parametrize(
    ("column", "fields", "shown"),
    [
        ("JOB", {}, "12"),
        ("JOB", {"array_id": 10, "array_index": 0}, "10_0"),
        ("NAME", {"name": "a\x1b[2J" + "x" * 40}, "a\\x1b[2J" + "x" * 16),
        ("ST", {"state": "held", "state_code": "PD"}, "H"),
        ("TIME", {}, "1m"),
        ("TIME", {"finished_ms": 3_000}, "2s"),
        ("TIME", {"started_ms": None}, "-"),
        ("TIME", {"started_ms": 70_000}, "0ms"),
        ("GPUS", {}, "-"),
        ("GPUS", {"request": {"gpus": 2}}, "2"),
        ("GPUS", {"request": {"gpus": 2, "gpu_model": "A100"}}, "2xA100"),
        ("GPUS", {"request": {"gpu_memory_bytes": 18 * GIB}}, "1x18 GiB"),
        ("GPUS", {"request": {"gpus": 3, "gpu_memory_bytes": 18 * GIB}}, "3x18 GiB"),
        ("GPUS", {"request": {"gpu_memory_bytes": 150 * GIB, "split": True}}, "150 GiB split"),
        ("WHERE", {}, "-"),
        ("WHERE", {"allocation": {"gpus": []}}, "cpu"),
        ("WHERE", {"allocation": {"gpus": [{"index": 3}, {"index": 1}]}}, "gpu 3,1"),
        ("REASON", {"reason": {"text": "x\ny"}}, "x\\ny"),
    ],
)
def test_golden_cells(column: str, fields: dict[str, Any], shown: str) -> None:
    assert cell(column, fields) == shown


def gpu(**fields: Any) -> dict[str, str]:
    made = {
        "index": 0,
        "model": "L4",
        "state": "free",
        "mode": None,
        "memory_bytes_used": 0,
        "memory_bytes_total": 24 * GIB,
        "utilization_percent": 0,
        "temperature_celsius": 0,
        "tenants": [],
        **fields,
    }
    names = [name or "NUMBERS" for name in GPU_HEADER]
    return dict(zip(names, gpu_row(made), strict=True))


def test_no_reading_is_not_zero() -> None:
    unknown = gpu(memory_bytes_used=None, utilization_percent=None, temperature_celsius=None)
    shown = [[found[name] for name in ("MEMORY", "NUMBERS", "UTIL", "TEMP")] for found in (gpu(), unknown)]
    assert shown == [["[" + "." * 20 + "]", "0 B / 24 GiB", "0%", "0C"], ["no reading", "-", "-", "-"]]


def test_a_page_shows_zero_as_zero_and_nothing_as_a_dash() -> None:
    page = job_page(job(exit_code=0), "last\x1bline")
    assert "exit code 0, signal -" in page and "pid -" in page
    assert "last\\x1bline" in page and "\x1b" not in page
