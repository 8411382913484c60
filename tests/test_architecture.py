"""The package's floors and its nevers, read from its source. Each rule also meets a made-up source that breaks it."""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PACKAGE = "django_jobs"
ROOT = Path(__file__).resolve().parent.parent

# From the ground up. A module may import from its own floor (without a circle) and from those below.
FLOORS = [
    {"exceptions", "statuses", "signals", "backoff", "errors", "runs", "ids", "database", "driver", "operations"},
    {"conf", "cron", "codec", "registry", "models", "context", "logs"},
    {"lifecycle", "execution", "observe"},
    {"api", "admin", "dashboard", "relay"},
    {"worker", "backend"},
    {"checks", "doctor", "bench", "apps", "management", "testing", "migrations"},
    {""},  # The face: django_jobs/__init__.py.
]
# Pairs that the floors would allow, and pairs worth a message of their own.
NEVERS = [
    ("models", "lifecycle"),
    ("execution", "models"),
    ("lifecycle", "worker"),
    ("lifecycle", "admin"),
    ("lifecycle", "dashboard"),
]
# apps.py, because Django forbids an AppConfig's module to import models; checks.py, because every process loads it.
LAZY = {"api", "apps", "checks"}
IN_ONE_FILE = {
    "celery",
    "cronsim",
    "cryptography",
    "kombu",
    "opentelemetry",
    "prometheus_client",
    "psycopg",
    "sentry_sdk",
}
FORBIDDEN = {"django.contrib.postgres": "it needs psycopg, and the package runs without"}

WRITERS = {"lifecycle", "migrations"}
JOB_MODELS = {"Job", "JobRun", "DeadLetter", "JobKey", "Worker"}
OTHER_MODELS = {"LogEntry"}  # Django's audit log, which the admin writes as every admin does.
ROW_WRITES = {"save", "asave", "delete", "adelete", "bulk_create", "abulk_create", "bulk_update", "abulk_update"}
QUERYSET_WRITES = ROW_WRITES | {"create", "acreate", "update", "aupdate"}
QUERYSET_WRITES |= {f"{a}{verb}_or_create" for a in ("", "a") for verb in ("get", "update")}
SQL_WRITE = re.compile(r"\b(INSERT\s+INTO|UPDATE\s+\S+\s+SET|DELETE\s+FROM|MERGE\s+INTO|TRUNCATE\s+\S)", re.IGNORECASE)


@dataclass(frozen=True)
class Import:
    """One import statement's target: a module of the package, or the dotted name of an outside one."""

    importer: str
    target: str
    line: int
    is_lazy: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


class Source:
    """The package as text: module name -> source."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.trees = {name: ast.parse(text) for name, text in texts.items()}
        self.packages = {name for name in texts if any(other.startswith(f"{name}.") for other in texts)} | {PACKAGE}
        self.imports = [found for name, tree in self.trees.items() for found in self._imports(name, tree)]

    @classmethod
    @cache
    def read(cls) -> "Source":
        texts = {}
        for path in sorted((ROOT / PACKAGE).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            texts[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
        return cls(texts)

    @property
    def inner(self) -> list[Import]:
        return [found for found in self.imports if _is_inside(found.target, PACKAGE)]

    def _imports(self, name: str, tree: ast.Module) -> Iterator[Import]:
        lazy = {id(node) for scope in ast.walk(tree) if _is_function(scope) for node in ast.walk(scope)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin(name, node)
                targets = [self._target(origin, alias.name) for alias in node.names]
            else:
                continue
            for target in targets:
                yield Import(name, target, node.lineno, id(node) in lazy)

    def _origin(self, name: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = name.split(".")
        parts = parts[: len(parts) - node.level + (name in self.packages)]
        return ".".join([*parts, node.module] if node.module else parts)

    def _target(self, origin: str, imported: str) -> str:
        """Return the submodule if ``imported`` is one, else the module that holds the name."""
        submodule = f"{origin}.{imported}"
        if submodule in self.trees or not _is_inside(origin, PACKAGE):
            return submodule
        return submodule if origin == PACKAGE and floor(submodule) >= 0 else origin


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def _is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def part(module: str) -> str:
    """Return the name that FLOORS knows: "lifecycle" for django_jobs.lifecycle.claim, "" for the face."""
    return f"{module}.".split(".")[1]


def floor(module: str) -> int:
    return next((number for number, parts in enumerate(FLOORS) if part(module) in parts), -1)


def modules_on_no_floor(source: Source) -> Iterator[str]:
    for name in source.trees:
        if floor(name) < 0:
            yield f"{name} is on no floor: add {part(name)!r} to FLOORS where it belongs"


def imports_that_go_up(source: Source) -> Iterator[str]:
    for found in source.inner:
        if floor(found.importer) < floor(found.target):
            yield f"{found}, which is on a higher floor"


def imports_that_must_never_be(source: Source) -> Iterator[str]:
    for found in source.inner:
        if (part(found.importer), part(found.target)) in NEVERS:
            yield f"{found}: {part(found.importer)} never imports {part(found.target)}"


def lazy_imports(source: Source) -> Iterator[str]:
    for found in source.inner:
        if found.is_lazy and part(found.importer) not in LAZY:
            yield f"{found} inside a function, and is none of those that may"


def circles(source: Source) -> Iterator[str]:
    below: dict[str, set[str]] = {name: set() for name in source.trees}
    for found in source.inner:
        if found.target in below and found.target != found.importer:
            below[found.importer].add(found.target)
    done: set[str] = set()

    def walk(name: str, way: list[str]) -> Iterator[str]:
        if name in way:
            yield "a circle: " + " -> ".join([*way[way.index(name) :], name])
        elif name not in done:
            for target in sorted(below[name]):
                yield from walk(target, [*way, name])
            done.add(name)

    for name in sorted(below):
        yield from walk(name, [])


def outside_imports(source: Source) -> Iterator[str]:
    files: dict[str, set[str]] = {}
    for found in source.imports:
        files.setdefault(found.target.split(".")[0], set()).add(found.importer)
        for name, reason in FORBIDDEN.items():
            if _is_inside(found.target, name):
                yield f"{found}: {reason}"
    for name in sorted(IN_ONE_FILE):
        if len(files.get(name, ())) > 1:
            yield f"{name} is imported in more than one file: {', '.join(sorted(files[name]))}"


def modules_named_like_an_export(source: Source) -> Iterator[str]:
    for package in sorted(source.packages & source.trees.keys()):
        for node in source.trees[package].body:
            if not isinstance(node, ast.ImportFrom):
                continue
            for alias in node.names:
                module = f"{package}.{alias.asname or alias.name}"
                if module in source.trees and source._target(source._origin(package, node), alias.name) != module:
                    yield f"{module} is named like something that {package} exports, and importing it would hide that"


def definitions_in_the_face(source: Source) -> Iterator[str]:
    for node in source.trees.get(PACKAGE, ast.Module([], [])).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield f"{PACKAGE}:{node.lineno} defines {node.name}; the face only re-exports"


def writes_outside_lifecycle(source: Source) -> Iterator[str]:
    for name, tree in source.trees.items():
        if part(name) in WRITERS:
            continue
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _is_write(node):
                yield f"{name}:{node.lineno} writes: {ast.unparse(node.func)}(); only lifecycle does"
            if isinstance(node, ast.Constant) and id(node) not in docstrings and _is_sql_write(node.value):
                yield f"{name}:{node.lineno} holds SQL that writes; only lifecycle does"


def _is_sql_write(value: object) -> bool:
    # "WHERE 0" touches no row: it only makes SQLite's transaction one that writes.
    return isinstance(value, str) and bool(SQL_WRITE.search(value)) and not value.endswith(" WHERE 0")


def _is_write(call: ast.Call) -> bool:
    """Guess if it is a method that writes rows: save() on anything, update() on what looks like a queryset."""
    if not isinstance(call.func, ast.Attribute):
        return False
    method, receiver = call.func.attr, call.func.value
    names = {node.id for node in ast.walk(receiver) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(receiver) if isinstance(node, ast.Attribute)}
    if names & OTHER_MODELS:
        return False
    is_queryset = bool(names & (JOB_MODELS | {"objects", "_default_manager", "get_queryset"}))
    is_queryset |= any(re.search(r"queryset|^qs$|^jobs$|^letters$", name) for name in names)
    return method in ROW_WRITES or (method in QUERYSET_WRITES and is_queryset)


Rule = Callable[[Source], Iterator[str]]
RULES: list[Rule] = [
    modules_on_no_floor,
    imports_that_go_up,
    imports_that_must_never_be,
    lazy_imports,
    circles,
    outside_imports,
    modules_named_like_an_export,
    definitions_in_the_face,
    writes_outside_lifecycle,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Rule) -> None:
    found = list(rule(Source.read()))

    assert not found, "\n".join(found)


BROKEN: list[tuple[Rule, dict[str, str], str]] = [
    (modules_on_no_floor, {"helpers": ""}, "add 'helpers' to FLOORS"),
    (imports_that_go_up, {"conf": "import django_jobs.api"}, "django_jobs.conf:1 imports django_jobs.api"),
    (imports_that_go_up, {"conf": "from django_jobs import api", "api": ""}, "imports django_jobs.api"),
    (
        imports_that_go_up,
        {"conf": "def f():\n    from .api import enqueue"},
        "django_jobs.conf:2 imports django_jobs.api",
    ),
    (imports_that_go_up, {"api": "from django_jobs import enqueue"}, "imports django_jobs,"),
    (
        imports_that_go_up,
        {"models": "", "models.job": "from ..lifecycle.claim import claim"},
        "django_jobs.lifecycle.claim",
    ),
    (
        imports_that_go_up,
        {"conf": "if TYPE_CHECKING:\n    from django_jobs.worker import Worker"},
        "django_jobs.worker",
    ),
    (imports_that_must_never_be, {"execution.call": "from django_jobs.models import Job"}, "never imports models"),
    (imports_that_must_never_be, {"models.job": "import django_jobs.lifecycle"}, "never imports lifecycle"),
    (
        imports_that_must_never_be,
        {"lifecycle.claim": "from django_jobs import worker", "worker": ""},
        "never imports worker",
    ),
    (lazy_imports, {"worker": "def f():\n    import django_jobs.conf"}, "django_jobs.worker:2"),
    (lazy_imports, {"worker": "class A:\n    async def f(self):\n        from . import conf", "conf": ""}, "worker:3"),
    (circles, {"conf": "import django_jobs.codec", "codec": "import django_jobs.conf"}, "conf -> django_jobs.codec"),
    (
        circles,
        {"a": "from . import b", "b": "from . import c", "c": "def f():\n    from . import a"},
        "c -> django_jobs.a",
    ),
    (outside_imports, {"models.job": "from django.contrib.postgres.fields import ArrayField"}, "needs psycopg"),
    (outside_imports, {"models.job": "from django.contrib import postgres"}, "needs psycopg"),
    (outside_imports, {"worker": "import psycopg", "database": "from psycopg import sql"}, "more than one file"),
    (
        outside_imports,
        {"relay.a": "def f():\n    import celery", "relay.b": "from celery.app import x"},
        "celery is imported",
    ),
    (
        modules_named_like_an_export,
        {"": "from django_jobs.api import cancel", "cancel": ""},
        "django_jobs.cancel is named",
    ),
    (
        modules_named_like_an_export,
        {"lifecycle": "from .claiming import claim", "lifecycle.claim": ""},
        "lifecycle.claim",
    ),
    (definitions_in_the_face, {"": "def enqueue(): ..."}, "defines enqueue"),
    (writes_outside_lifecycle, {"admin": "def f(job):\n    job.save()"}, "django_jobs.admin:2 writes: job.save()"),
    (writes_outside_lifecycle, {"worker": "Job.objects.filter(pk=1).update(status=1)"}, "writes"),
    (writes_outside_lifecycle, {"admin": "def f(queryset):\n    queryset.filter(a=1).delete()"}, "writes"),
    (writes_outside_lifecycle, {"api": "models.JobKey.objects.using(x).get_or_create(key=1)"}, "writes"),
    (
        writes_outside_lifecycle,
        {"worker": "cursor.execute('UPDATE django_jobs_job SET status = 1')"},
        "SQL that writes",
    ),
    (writes_outside_lifecycle, {"worker": "cursor.execute(f'DELETE FROM {table}')"}, "SQL that writes"),
]


@pytest.mark.parametrize(("rule", "texts", "expected"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_source_that_breaks_the_rule_is_found(rule: Rule, texts: dict[str, str], expected: str) -> None:
    source = Source({f"{PACKAGE}.{name}".rstrip("."): text for name, text in texts.items()})

    found = list(rule(source))

    assert any(expected in message for message in found), found


SOUND = {
    "": "from django_jobs.api import enqueue\nfrom django_jobs import signals",
    "api": "def enqueue():\n    from django_jobs.lifecycle import enqueue",
    "signals": "from django.dispatch import Signal",
    "database": "cursor.execute('DELETE FROM django_jobs_job WHERE 0')",
    "apps": "def ready():\n    from django_jobs import checks, observe",
    "lifecycle": "",
    "lifecycle.enqueue": '"""INSERT INTO is ours."""\nfrom ..models import Job\nJob.objects.create()',
    "models": "from django_jobs.models.job import Job",
    "models.job": "options = {}\noptions.update(a=1)",
    "admin": '"""UPDATE job SET is not SQL here."""\nfrom django_jobs.lifecycle import enqueue\nseen.update([1])',
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_sound_source_breaks_no_rule(rule: Rule) -> None:
    source = Source({f"{PACKAGE}.{name}".rstrip("."): text for name, text in SOUND.items()})

    assert list(rule(source)) == []


def test_every_floor_is_looked_at() -> None:
    assert {part(name) for name in Source.read().trees} > {"conf", "models", "statuses"}
