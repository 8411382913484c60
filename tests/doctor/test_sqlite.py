"""jobs_doctor on SQLite: its options and its file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections

from django_jobs.doctor import sqlite
from django_jobs.doctor.findings import Level

pytestmark = [pytest.mark.sqlite, pytest.mark.django_db(transaction=True)]

ADVICE = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that makes the default connection one to a new file, with these options."""
    own = connections["default"]

    def opened(**options: Any) -> Path:
        wrapper = type(own)(
            {**own.settings_dict, "NAME": str(tmp_path / "jobs.sqlite3"), "OPTIONS": options}, "default"
        )
        connections["default"] = wrapper
        return tmp_path / "jobs.sqlite3"

    yield opened
    if connections["default"] is not own:
        connections["default"].close()
    connections["default"] = own


def test_a_new_projects_options_are_named_with_what_to_write(file: Any) -> None:
    file()

    found = list(sqlite.options("default"))

    assert [each.level for each in found] == [Level.WARNING] * 2
    assert [each.mend[0].removeprefix('DATABASES["default"]["OPTIONS"]') for each in found] == [
        '["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"',
        '["transaction_mode"] = "IMMEDIATE"',
    ]


def test_a_short_patience_is_named(file: Any) -> None:
    file(**{**ADVICE, "timeout": 0.5})

    (finding,) = sqlite.options("default")

    assert "waits for another one only 0.5 s" in finding.message


def test_the_recommended_options_are_fine(file: Any) -> None:
    file(**ADVICE)

    assert [each.level for each in sqlite.options("default")] == [Level.FINE]
    (finding,) = sqlite.durability("default")
    assert "a power cut may lose the last commits" in finding.message


def test_no_waiting_for_the_disk_is_a_problem(file: Any) -> None:
    file(init_command="PRAGMA synchronous=OFF")

    assert [each.level for each in sqlite.durability("default")] == [Level.PROBLEM]


def test_a_file_of_free_pages_is_told_and_mended(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "FREE_BYTES", 1)
    file(**ADVICE)
    with connections["default"].cursor() as cursor:
        cursor.execute("CREATE TABLE filled (text)")
        cursor.executemany("INSERT INTO filled VALUES (%s)", [["x" * 4000]] * 100)
        cursor.execute("DELETE FROM filled")

        (finding,) = sqlite.file("default")
        assert finding.level is Level.WARNING
        assert "are free pages" in finding.message

        cursor.execute("VACUUM")
    assert [each.level for each in sqlite.file("default")] == [Level.FINE]


def test_a_wal_that_is_not_taken_in_is_told(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LARGE_WAL", 1)
    file(**ADVICE)
    with connections["default"].cursor() as cursor:
        cursor.execute("CREATE TABLE filled (text)")

    (finding,) = sqlite.file("default")

    assert "The WAL beside the file has " in finding.message


MOUNTS = [("/", "ext4"), ("/srv", "nfs4"), ("/srv/local", "xfs"), ("/mnt/windows", "cifs")]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/opt/shop/db.sqlite3", "ext4"),
        ("/srv/db.sqlite3", "nfs4"),
        ("/srv/local/db.sqlite3", "xfs"),
        ("/srvs/db.sqlite3", "ext4"),
        ("/mnt/windows/a/b", "cifs"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(path: str, kind: str) -> None:
    assert sqlite.file_system(Path(path), MOUNTS) == kind


def test_a_network_drive_is_a_problem(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file(**ADVICE)
    monkeypatch.setattr(sqlite, "mounts", lambda: [("/", "ext4"), (str(path.parent), "nfs")])

    (finding,) = sqlite.file("default")

    assert finding.level is Level.PROBLEM
    assert "is on a network drive (nfs)" in finding.message


def test_a_database_in_memory_has_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "NAME", ":memory:")

    assert [each.level for each in (*sqlite.options("default"), *sqlite.file("default"))] == [Level.FINE] * 2
