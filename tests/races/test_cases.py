"""Every way in which job systems were seen to lose, double or hang jobs has a test that names it in its docstring.

Those that need processes, signals or a database that fails are in this folder; the others are beside what they test.
`pytest -v tests/races/test_cases.py` lists the cases, and `grep -rw CL-02 tests` finds the tests of one.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
CASES = {
    "CL": (1, 2, 3, 4, 5, 6, 8, 9, 10, 13, 14, 15, 17, 20, 22),  # claims, leases and order
    "WK": (1, 2, 4, 5, 7, 8, 10, 11, 12, 13, 14, 17, 19, 20),  # the worker's process
    "DP": (1, 2, 6, 7, 8, 9, 10),  # deploys and settings
    "PG": (3, 5),  # wake-ups that serialise commits, and a key that all want
    "RT": (8,),  # a crash between two writes
}
NAMES = [f"{kind}-{number:02}" for kind, numbers in CASES.items() for number in numbers]


@cache
def _tests() -> dict[str, list[str]]:
    """The tests that name a case, by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for name in re.findall(r"\b[A-Z]{2}-\d\d\b", ast.get_docstring(node) or ""):
                    found[name].append(f"{path.relative_to(TESTS)}::{node.name}")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_case_has_a_test(name: str) -> None:
    assert _tests()[name]
