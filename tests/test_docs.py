"""The documentation: links lead somewhere, tables are complete, Python compiles, and what can run does."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from django.core.management import load_command_class
from django.core.management.base import CommandParser

import django_jobs
from django_jobs import checks, exceptions, registry, testing
from django_jobs.conf import QueueOptions, Settings, Statsd
from django_jobs.context import JobContext
from django_jobs.runs import Death, EndedRun
from django_jobs.statuses import DeathReason, JobStatus, RunStatus, Uniqueness

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block. `python` is executed, page by page; `py` is an excerpt and only compiled; `sh` is a command."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    return [
        Block(page, page.read_text()[: match.start()].count("\n") + 1, match[1], match[2])
        for page in PAGES
        for match in FENCE.finditer(page.read_text())
        if match[1] in languages
    ]


def page(name: str) -> str:
    return (DOCS / name).read_text()


def name_of(value: object) -> str:
    return str(value.relative_to(DOCS)) if isinstance(value, Path) else str(value)


@pytest.mark.parametrize("source", PAGES, ids=name_of)
def test_links_lead_to_pages_and_headings_that_exist(source: Path) -> None:
    text = FENCE.sub("", source.read_text())
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
        if target.startswith("http"):
            continue
        path = (source.parent / target).resolve() if target else source
        assert path.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in {slug(heading) for heading in re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)}


def slug(heading: str) -> str:
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_page_can_be_reached_from_the_first() -> None:
    linked = {(DOCS / target).resolve() for target in re.findall(r"\]\(([^)#\s]+\.md)", page("index.md"))}

    assert {*PAGES} - linked == {DOCS / "index.md"}


@pytest.mark.parametrize("block", blocks("py", "python"), ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


EXECUTED = [path for path in PAGES if path.name != "tutorial.md" and any(b.page == path for b in blocks("python"))]


@pytest.mark.parametrize("source", EXECUTED, ids=name_of)
@pytest.mark.django_db
def test_python_runs(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {"__name__": f"docs_{source.stem.replace('-', '_')}"}

    with registry.isolated():
        for block in blocks("python"):
            if block.page == source:
                exec(compile(block.text, str(block), "exec"), namespace)


def first_cells(text: str) -> set[str]:
    """The words in backticks in the first column of the tables."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    return set(itertools.chain.from_iterable(re.findall(r"`([^`]+)`", row) for row in rows))


def test_settings_are_all_there_with_their_defaults() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", page("reference/settings.md"), re.MULTILINE))

    assert list(rows) == [field.name for field in dataclasses.fields(Settings)]
    for name, shown in rows.items():
        assert shown == as_shown(getattr(Settings(), name)), name


def as_shown(value: object) -> str:
    """A default as the table writes it."""
    if not hasattr(value, "total_seconds"):
        return f'`"{value}"`' if isinstance(value, str) else f"`{value!r}`"
    seconds = int(value.total_seconds())
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds % length == 0:
            count = seconds // length
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return f"{seconds} s"


def test_nested_settings_are_named() -> None:
    text = page("reference/settings.md")
    for kind in (QueueOptions, Statsd):
        for field in dataclasses.fields(kind):
            assert field.name in text


def test_face_is_all_there() -> None:
    text = page("reference/api.md") + page("reference/exceptions.md")

    assert [name for name in django_jobs.__all__ if f"`{name}" not in text] == []


def test_fields_of_what_a_caller_gets_are_named() -> None:
    api, tasks, signals = page("reference/api.md"), page("reference/tasks.md"), page("reference/signals.md")
    expected = {
        api: [field.name for field in dataclasses.fields(django_jobs.JobInfo)],
        signals: [*EndedRun._fields, *Death._fields],
        tasks: [
            *(name for name in JobContext.__dataclass_fields__ if name not in {"deadline", "stopping", "clock"}),
            "remaining()", "is_stopping", "should_stop",
        ],
    }  # fmt: skip

    assert [name for text, names in expected.items() for name in names if f"`{name}`" not in text] == []


def test_options_of_tasks_and_of_using_are_all_there() -> None:
    declared, used = page("reference/tasks.md").split("## Options of one enqueueing")

    assert first_cells(declared) == set(registry.known._READERS)
    assert first_cells(used.split("## Arguments")[0]) | {"run_after"} == set(registry.options._READERS)


def test_words_for_states_and_reasons_are_all_there() -> None:
    assert first_cells(page("how-to/retries.md")) >= set(DeathReason.values)
    assert {value.strip('"') for value in first_cells(page("how-to/idempotency.md"))} >= set(Uniqueness.values)
    statuses = first_cells(page("reference/api.md"))
    assert statuses >= {*JobStatus.values, "succeeded", "cancelled", "dead", "replayed", "discarded"}
    assert all(f"`{status}`" in page("explanation/state-diagram.md") for status in RunStatus.values)


def test_exceptions_are_all_there() -> None:
    ours = {
        name
        for name, kind in vars(exceptions).items()
        if isinstance(kind, type) and kind.__module__ == exceptions.__name__
    }

    assert first_cells(page("reference/exceptions.md")) == ours - {"JobsError"}


def test_checks_are_all_there() -> None:
    ids = set(re.findall(r"django_jobs\.[EW]\d{3}", Path(checks.__file__).read_text()))

    assert first_cells(page("reference/checks.md")) == ids


def test_commands_and_their_flags_are_all_there() -> None:
    text = page("reference/commands.md")
    for path in (ROOT / "django_jobs/management/commands").glob("[a-z]*.py"):
        assert path.stem in text
        section = text.split(f"## {path.stem.replace('jobs_worker', 'runworker')}\n")[1].split("\n## ")[0]
        documented = {flag.split()[0] for flag in first_cells(section) if flag.startswith("--")}
        assert documented == own_flags(path.stem), path.stem


def own_flags(name: str) -> set[str]:
    parser = CommandParser()
    load_command_class("django_jobs", name).add_arguments(parser)
    return {flag for action in parser._actions for flag in action.option_strings} - {"-h", "--help"}


def test_test_kit_is_all_there() -> None:
    text = page("how-to/testing.md")

    for function in (testing.enqueued, testing.assert_enqueued, testing.run_jobs):
        code = function.__code__
        names = [function.__name__, *code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]
        row = next(line for line in text.splitlines() if line.startswith(f"| `{function.__name__}("))
        assert all(re.search(rf"\b{name}\b", row) for name in names), function.__name__
    assert "`immediate()`" in text


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.timeout(180)
def test_tutorial_works_in_a_new_project(tmp_path: Path) -> None:
    """Every block is done in order: files are written, commands are run; only installing is left out."""
    said = ""
    for block in [each for each in blocks("python", "sh") if each.page.name == "tutorial.md"]:
        if block.language == "python":
            write(tmp_path, block.text)
        else:
            said += run_commands(tmp_path, block.text)

    assert "Invoice 12 is on its way." in said
    assert "run succeeded task=shop.tasks.send_invoice" in said
    assert re.search(r"run failed .*ValueError.* retry_in=\d", said)
    assert re.search(r"run failed .*ValueError.* reason=out_of_tries", said)
    assert "PAGE dead_letters: 1 dead letter is open" in said


def write(folder: Path, text: str) -> None:
    """Do what the first line says: it names the file, and whether the rest goes at its end."""
    path, at_the_end = re.match(r"# (\S+)(.*)", text).groups()  # type: ignore[union-attr]
    target = folder / path
    target.write_text((target.read_text() if at_the_end else "") + text)


def run_commands(folder: Path, text: str) -> str:
    text = re.sub(r"^(python -m venv|\. \.venv|pip install).*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^django-admin", "python -m django", text, flags=re.MULTILINE)
    ours = ("DJANGO_", "DATABASE_", "TEST_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        ["bash", "-euc", text], cwd=folder, env=environment, timeout=120, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout
