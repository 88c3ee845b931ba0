"""docs/pains.md names tests that exist, and a row for each failure that this release answers for."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/pains.md").read_text(encoding="utf-8")
CASES = [
    "P02",
    "P04",
    "P07",
    "P08",
    "P11",
    "P15",
    "P22",
    "P27",
    "P28",
    "P29",
    "P34",
    "P35",
    "P48",
    "P51",
    "P54",
    "P58",
    "P62",
    "P69",
]


def missing(page: str) -> list[str]:
    """Name the tests of a page that no file defines."""
    lost = []
    for file, test in re.findall(r"([\w/]+\.py)::(\w+)", page):
        path = ROOT / file
        if not path.is_file() or f"def {test}(" not in path.read_text(encoding="utf-8"):
            lost.append(f"{file}::{test}")
    return lost


def test_every_case_has_a_row_with_tests() -> None:
    rows = {line.split("|")[1].strip(): line for line in PAGE.splitlines() if line.startswith("| P")}
    assert list(rows) == CASES
    assert all("::test_" in row for row in rows.values())


def test_named_tests_exist() -> None:
    assert missing(PAGE) == []


def test_a_test_that_is_gone_is_noticed() -> None:
    assert missing("tests/unit/test_pains.py::test_no_such_thing") == ["tests/unit/test_pains.py::test_no_such_thing"]
