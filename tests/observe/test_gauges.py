"""The backlog and the ages of the queues, over a real UDP socket."""

from __future__ import annotations

import re
import socket
from datetime import timedelta
from typing import Any, cast

import pytest
from django.test import override_settings

from django_jobs.models import Job
from django_jobs.observe.gauges import Gauges
from django_jobs.worker import services
from django_jobs.worker.heartbeat import Heartbeat
from django_jobs.worker.options import WorkerOptions
from tests.observe import rows
from tests.observe.server import closed_afterwards, config, server

__all__ = ["closed_afterwards", "server"]

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)


def sent(server: socket.socket) -> dict[str, int]:
    """The gauges of the next datagram, in tens of the unit."""
    lines = server.recv(65536).decode().split("\n")
    found = [re.fullmatch(r"(.+):([0-9.]+)\|g", line) for line in lines]
    return {match[1]: round(float(match[2])) // 10 for match in found if match}


def test_backlog_and_age_by_queue_and_priority(server: socket.socket) -> None:
    """CL-22"""
    jobs = [rows.job(due=5 * SECOND, priority=10) for _ in range(20)]
    Job.objects.bulk_create([*jobs, rows.job(due=32 * SECOND, priority=-5)])

    with override_settings(DJANGO_JOBS=config(server, prefix="shop")):
        Gauges("default").send()

    assert sent(server) == {
        "shop.queue.default.backlog": 2,
        "shop.queue.default.oldest_age_s": 3,
        "shop.queue.default.priority.10.oldest_age_s": 0,
        "shop.queue.default.priority.-5.oldest_age_s": 3,
    }


def test_what_is_gone_goes_back_to_zero_once(server: socket.socket) -> None:
    gauges = Gauges("default")
    with override_settings(DJANGO_JOBS=config(server)):
        rows.job(due=50 * SECOND, queue_name="mail").save()
        gauges.send()
        assert sent(server)["queue.mail.oldest_age_s"] == 5
        Job.objects.all().delete()

        gauges.send()
        assert set(sent(server).values()) == {0}
        gauges.send()
        rows.job(due=50 * SECOND).save()
        gauges.send()

    assert "queue.mail.backlog" not in sent(server)


def test_database_that_is_not_the_default_one_is_named(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_jobs.observe.gauges.queue_states", lambda using: _states())
    with override_settings(DJANGO_JOBS=config(server)):
        Gauges("other").send()

    assert "database.other.queue.mail.backlog" in sent(server)


def _states() -> Any:
    from django_jobs.observe.alerts import QueueState

    return [QueueState("mail", 1, SECOND, {0: SECOND})]


@pytest.mark.parametrize("is_set", [True, False])
def test_workers_send_them_where_there_is_a_server(server: socket.socket, is_set: bool) -> None:
    with override_settings(DJANGO_JOBS=config(server) if is_set else {}):
        table = services.table(WorkerOptions(), cast(Heartbeat, None), lambda: False)

        assert [each.rows is None for each in table if each.name == "gauges"] == [True] * is_set
