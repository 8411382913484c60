"""Old rows go, by the command and by the workers' service."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_jobs.models import JobRun
from tests.factories import JobRunFactory

pytestmark = pytest.mark.django_db


def test_command_deletes_what_is_past_its_retention_and_counts_it() -> None:
    JobRunFactory.create_batch(3, ended_at=timezone.now() - timedelta(days=8))
    kept = JobRunFactory.create(ended_at=timezone.now() - timedelta(days=6))
    out = io.StringIO()

    call_command("jobs_prune", stdout=out)

    assert "Deleted 3 runs" in out.getvalue()
    assert JobRun.objects.get() == kept


def test_command_says_when_there_is_nothing_to_delete() -> None:
    out = io.StringIO()

    call_command("jobs_prune", stdout=out)

    assert out.getvalue() == "Nothing was old enough to delete.\n"


def test_unknown_database_is_refused() -> None:
    with pytest.raises(CommandError, match="Did you mean 'default'"):
        call_command("jobs_prune", database="defalt")
