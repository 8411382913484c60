"""Search by id, key and task. Nothing else: no statement here reads JSON or error text."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from django.db.models import Q

from django_jobs import registry
from django_jobs.admin.display import strings
from django_jobs.models import DeadLetter, JobKey, Worker

MOST_IDS = 1000  # one key may exist in many scopes


class Search(NamedTuple):
    """What a search looks for, and the order of the index that finds it; None if there is no such index."""

    condition: Q
    order: tuple[str, ...] | None


def as_uuid(term: str) -> UUID | None:
    """An id in any common notation: with or without dashes, in braces, as a urn, in either case."""
    try:
        return UUID(term.strip().strip("\"'"))
    except ValueError:
        return None


def task_names(term: str, using: str) -> list[str]:
    """The known tasks whose name contains the term; the term itself if there is none.

    Names are compared here and not in the database, which then only has to compare for equality.
    """
    known = {*registry.names(), *served_names(using)}
    return sorted(name for name in known if term.lower() in name.lower()) or [term]


def served_names(using: str) -> set[str]:
    """The tasks that running workers know: there may be some that this process does not."""
    lists = Worker.objects.using(using).values_list("task_names", flat=True)[:200]
    return {name for each in lists for name in strings(each)}


def job_ids(term: str, using: str) -> list[UUID]:
    """The jobs that a term names by id or by key."""
    holders = JobKey.objects.using(using).filter(key=term).values_list("holder_id", flat=True)[:MOST_IDS]
    letters = DeadLetter.objects.using(using).filter(key=term).values_list("job_id", flat=True)[:MOST_IDS]
    ids = [*holders, *letters]
    given = as_uuid(term)
    return [given, *ids] if given else ids


def by_id_key_or_task(term: str, using: str, *, id_order: tuple[str, ...]) -> Search:
    """Rows of one job, of the job that holds a key, or of the tasks of a name; `id_order` begins with the job's id."""
    ids = job_ids(term, using)
    if ids:
        # Not both: an OR with the task's name would keep the database from using the index on the id.
        return Search(Q(**{f"{id_order[0].lstrip('-')}__in": ids}), id_order)
    return Search(Q(task_name__in=task_names(term, using)), None)
