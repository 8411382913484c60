"""The list of `make mutants` speaks of the code as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import django_jobs
from tools.mutants import MUTANTS, Mutant

CODE = Path(django_jobs.__file__).parent
TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.guard)
def test_guard_is_in_the_code_once_and_its_tests_are_there(mutant: Mutant) -> None:
    code = (CODE / mutant.file).read_text()
    assert [text for text, _ in mutant.replacements if code.count(text) != 1] == []

    for test in mutant.tests:
        path, *names = test.split("::")
        text = (TESTS / path).read_text()
        assert [
            name for name in names if f"def {name.split('[')[0]}(" not in text and f"class {name}" not in text
        ] == []
