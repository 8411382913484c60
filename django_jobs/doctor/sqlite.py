"""What SQLite's options and its file do to a queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.db import connections

from django_jobs.doctor.findings import Finding, fine, or_fine, problem, size, warning
from django_jobs.doctor.rows import ask

LEAST_BUSY = 5000  # milliseconds
FREE_SHARE, FREE_BYTES = 0.5, 64e6  # of the file; below, its free pages are no matter
LARGE_WAL = 256e6  # bytes
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "fuse.sshfs", "glusterfs", "lustre", "ncpfs"}


def pragma(using: str, name: str) -> Any:
    """The value of a PRAGMA on this connection."""
    return ask(using, f"PRAGMA {name}")[0][0]


def version(using: str) -> Iterator[Finding]:
    connection: Any = connections[using]
    yield fine("server", f"SQLite {connection.Database.sqlite_version}, {connection.settings_dict['NAME']}.")


def options(using: str) -> Iterator[Finding]:
    yield from or_fine(_options(using), "options", "The connection has the recommended options.")


def _options(using: str) -> Iterator[Finding]:
    connection = connections[using]
    if connection.is_in_memory_db():  # type: ignore[attr-defined]  # SQLite's own
        return
    place = f'DATABASES["{using}"]["OPTIONS"]'
    mode = str(pragma(using, "journal_mode"))
    if mode.lower() != "wal":
        message = f"journal_mode is {mode}: a writer and readers shut each other out."
        yield warning(
            "options", message, f'{place}["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"'
        )
    begin = str(connection.settings_dict["OPTIONS"].get("transaction_mode"))
    if begin.upper() not in {"IMMEDIATE", "EXCLUSIVE"}:
        message = (
            'transaction_mode is not IMMEDIATE: a transaction that reads first fails at once with "database is locked".'
        )
        yield warning("options", message, f'{place}["transaction_mode"] = "IMMEDIATE"')
    busy = int(pragma(using, "busy_timeout"))
    if busy < LEAST_BUSY:
        message = f'A writer waits for another one only {busy / 1000:g} s before it fails with "database is locked".'
        yield warning("options", message, f'{place}["timeout"] = 20')


def durability(using: str) -> Iterator[Finding]:
    if int(pragma(using, "synchronous")) == 0:
        message = "synchronous is OFF: a power cut loses jobs that were committed, and may spoil the file."
        mend = (
            f'DATABASES["{using}"]["OPTIONS"]["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"'
        )
        yield problem("durability", message, mend)
    elif int(pragma(using, "synchronous")) == 1 and str(pragma(using, "journal_mode")).lower() == "wal":
        yield fine(
            "durability", "A crash of the process loses nothing; a power cut may lose the last commits (NORMAL)."
        )
    else:
        yield fine("durability", "A commit that was answered is on the disk.")


def file(using: str) -> Iterator[Finding]:
    """Look at where the file lies, and what is in it."""
    connection = connections[using]
    if connection.is_in_memory_db():  # type: ignore[attr-defined]
        yield fine("file", "The database is in memory.")
        return
    path = Path(str(connection.settings_dict["NAME"]).removeprefix("file:").partition("?")[0]).resolve()
    yield from or_fine(_file(path, using), "file", "The file is on a local disk and has little free room in it.")


def _file(path: Path, using: str) -> Iterator[Finding]:
    kind = file_system(path, mounts())
    if kind in NETWORK:
        message = f"{path} is on a network drive ({kind}), whose locks SQLite cannot trust: the file may be spoilt."
        yield problem("file", message, "Move the file to a local disk, or use PostgreSQL.")
    page, free = int(pragma(using, "page_size")), int(pragma(using, "freelist_count"))
    unused, total = page * free, page * int(pragma(using, "page_count"))
    if unused > FREE_BYTES and unused > FREE_SHARE * total:
        message = f"{size(unused)} of the file's {size(total)} are free pages."
        yield warning("file", message, "With the workers stopped: VACUUM;")
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size > LARGE_WAL:
        message = (
            f"The WAL beside the file has {size(log.stat().st_size)}: a reader that never ends keeps it from being "
            "taken in, and every read walks through it."
        )
        yield warning("file", message, "End that reader; then: PRAGMA wal_checkpoint(TRUNCATE);")


def mounts() -> list[tuple[str, str]]:
    """(Mount point, kind) of every file system, where the system tells (Linux)."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return []
    return [(fields[1], fields[2]) for fields in (line.split(" ") for line in lines) if len(fields) > 2]


def file_system(path: Path, mounted: list[tuple[str, str]]) -> str:
    """The kind of file system that holds the path; empty if nobody knows."""
    holders = [(len(Path(point).parts), kind) for point, kind in mounted if path.is_relative_to(point)]
    return max(holders)[1] if holders else ""
