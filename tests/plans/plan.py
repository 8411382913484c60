"""The plans of the statements that the product sends, taken at the moment when it sends them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db import DatabaseError, connection, transaction

T = TypeVar("T")
OURS = re.compile(r"\s*(?=SELECT|WITH|INSERT|UPDATE|DELETE).*\b(FROM|JOIN|INTO|UPDATE)\s+[\"`]?django_jobs_", re.DOTALL)


@dataclass(frozen=True)
class Plan:
    """How PostgreSQL ran a statement, or a part of it."""

    sql: str
    top: dict[str, Any]
    statistics: str = ""

    @property
    def nodes(self) -> list[dict[str, Any]]:
        return list(_walk(self.top))

    @property
    def buffers(self) -> int:
        """The most pages that one node and those below it have touched."""
        return max(map(_pages, self.nodes))

    @property
    def rows(self) -> int:
        """The most rows that one node has read, those it left out among them."""
        return max(map(_rows, self.nodes))

    @property
    def sorted(self) -> int:
        """The most rows that one node had to sort."""
        return max((_rows(node["Plans"][0]) for node in self.nodes if node["Node Type"] == "Sort"), default=0)

    @property
    def indexes(self) -> set[str]:
        return {node["Index Name"] for node in self.nodes if "Index Name" in node}

    @property
    def scanned(self) -> set[str]:
        """The tables that were read from their first page on."""
        return {node["Relation Name"] for node in self.nodes if node["Node Type"] == "Seq Scan"}

    def faults(self, *, rows: int, pages: int, table: str | None) -> list[str]:
        """What is too much in it, where `table` holds a backlog."""
        found = []
        if table in self.scanned:
            found.append(f"It reads {table} from its first page on.")
        if self.rows > rows:
            found.append(f"It reads {self.rows} rows, and not {rows} at most.")
        if self.buffers > pages:
            found.append(f"It touches {self.buffers} pages, and not {pages} at most.")
        return [f"{' '.join(found)}\n{self}"] if found else []

    def part(self, name: str) -> Plan:
        """The plan of one WITH."""
        (found,) = (node for node in self.nodes if node.get("Subplan Name") == f"CTE {name}")
        return Plan(self.sql, found, self.statistics)

    def __str__(self) -> str:
        about = f"Statistics: {self.statistics}" if self.statistics else ""
        return "\n".join([about, " ".join(self.sql.split())[:2000], *_lines(self.top, 0)])


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from _walk(below)


def _rows(node: dict[str, Any]) -> int:
    removed = sum(count for name, count in node.items() if name.startswith("Rows Removed by"))
    return int((node["Actual Rows"] + removed) * node["Actual Loops"])


def _pages(node: dict[str, Any]) -> int:
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


def _lines(node: dict[str, Any], depth: int) -> Iterator[str]:
    about = [str(node[name]) for name in ("Subplan Name", "Node Type", "Index Name", "Relation Name") if name in node]
    conditions = [f"{name}: {node[name]}" for name in ("Index Cond", "Filter", "Sort Key") if name in node]
    yield f"{'  ' * depth}{' '.join(about)}: {_rows(node)} rows, {_pages(node)} pages {'; '.join(conditions)}"
    for below in node.get("Plans", ()):
        yield from _lines(below, depth + 1)


_RUN = """
    SAVEPOINT plan; {before}; EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {sql};
    ROLLBACK TO plan; RELEASE plan"""


def run(sql: str, params: Any, before: str = "") -> Plan:
    """Run a statement on PostgreSQL, after others if need be, and undo all of it; in one round trip."""
    with transaction.atomic() if not connection.in_atomic_block else nullcontext(), connection.cursor() as cursor:
        try:
            cursor.execute(_RUN.replace("{before}", before).replace("{sql}", sql), params)
        except DatabaseError:
            cursor.execute("ROLLBACK TO plan")  # what the statement itself would leave
            raise
        while cursor.description is None:
            cursor.nextset()
        ((answer,),) = cursor.fetchall()
    return Plan(sql, answer[0]["Plan"])


class _Enough(Exception):
    """As many statements as are wanted have been seen."""


@contextmanager
def explained(explain: Callable[[str, Any], T], *, table: str = "", most: int = 1000) -> Iterator[list[T]]:
    """What `explain` says of each statement of the block that names the table, or any table of ours.

    Each is explained before it is sent, when its rows are still as it will find them. After `most` of them the block
    ends.
    """
    found: list[T] = []
    is_explaining = False

    def look(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal is_explaining
        if is_explaining or not re.search(rf"{table}\b", sql) or not OURS.match(sql):
            return execute(sql, params, many, context)
        if len(found) >= most:
            raise _Enough
        is_explaining = True
        try:
            found.append(explain(sql, params))
        finally:
            is_explaining = False
        return execute(sql, params, many, context)

    with connection.execute_wrapper(look), suppress(_Enough):
        yield found
