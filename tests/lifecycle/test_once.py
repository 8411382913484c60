"""once(): the guard by hand. The key and the effect commit together, and only one transaction ever does so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import transaction

from django_jobs import NotInTransaction, once
from django_jobs.database import Clock
from django_jobs.models import JobKey
from tests.lifecycle.threads import OpenTransaction, Threads, at_once, wait_until_blocked
from tests.models import Effect

transactional = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def charge(label: str = "charged", **options: object) -> bool:
    with transaction.atomic():
        is_first = once("charge:7", **options)  # type: ignore[arg-type]
        if is_first:
            Effect.objects.create(label=label)
    return is_first


@transactional
def test_second_transaction_is_told_no() -> None:
    assert [charge(), charge(), charge()] == [True, False, False]
    assert Effect.objects.count() == 1


@transactional
def test_second_call_in_the_same_transaction_is_told_no_and_leaves_it_usable() -> None:
    with transaction.atomic():
        assert once("k")
        assert not once("k")
        Effect.objects.create(label="usable")

    assert Effect.objects.count() == 1


@transactional
def test_outside_a_transaction_it_is_refused_with_the_mend() -> None:
    with pytest.raises(NotInTransaction, match=r"once\('k'\) needs transaction.atomic\(\)"):
        once("k")
    with transaction.atomic(), pytest.raises(NotInTransaction):
        once("k", using="other")

    assert JobKey.objects.count() == 0


@transactional
def test_rolled_back_transaction_gives_the_key_back() -> None:
    with transaction.atomic():
        assert once("charge:7")
        transaction.set_rollback(True)

    assert charge()


@pytest.mark.race
@transactional
@pytest.mark.parametrize("commits", [True, False])
def test_it_waits_for_an_open_transaction_that_holds_the_key(commits: bool) -> None:
    with Threads() as threads:
        holder = OpenTransaction(threads, lambda: once("charge:7"))
        second = threads.start(charge)
        wait_until_blocked()
        assert not second.done()
        holder.end(commits=commits)

    assert second.result() is not commits


@pytest.mark.race
@transactional
def test_of_twenty_at_once_one_has_the_effect() -> None:
    assert sum(at_once([charge] * 20)) == 1
    assert Effect.objects.count() == 1


@transactional
def test_key_is_free_again_after_its_ttl() -> None:
    assert charge(ttl=60)
    assert not charge(ttl=60)
    row = JobKey.objects.get()
    assert row.expires_at is not None
    assert timedelta(seconds=60) <= row.expires_at - row.created_at < timedelta(seconds=61)
    JobKey.objects.update(expires_at=Clock(timedelta(seconds=-1)))

    assert [charge(ttl=60), charge(ttl=60)] == [True, False]


@pytest.mark.race
@transactional
def test_expired_key_goes_to_one_of_many() -> None:
    charge(ttl=60)
    JobKey.objects.update(expires_at=Clock(timedelta(seconds=-1)))

    assert sum(at_once([lambda: charge(ttl=60)] * 8)) == 1


@transactional
def test_scopes_are_apart() -> None:
    assert [charge(scope="shop"), charge(scope="bank"), charge(), charge(scope="shop")] == [True, True, True, False]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: once(""), "key="),
        (lambda: once("k" * 201), "key="),
        (lambda: once("a\0b"), "key="),
        (lambda: once("\ud800"), "key="),
        (lambda: once("k", ttl=0), "ttl="),
        (lambda: once("k", ttl=-1), "ttl="),
        (lambda: once("k", ttl=float("nan")), "ttl="),
        (lambda: once("k", ttl=10**13), "ttl="),
        (lambda: once("k", scope="s" * 300), "scope="),
        (lambda: once("k", scope="a\0b"), "scope="),
    ],
)
def test_bad_input_is_refused_at_the_call_by_its_name(call: Callable[[], bool], named: str) -> None:
    with transaction.atomic():
        with pytest.raises(ValueError, match=named):
            call()
        Effect.objects.create(label="usable")

    assert Effect.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize("key", [7, None, b"k"])
def test_key_that_is_no_string_is_refused(key: object) -> None:
    with transaction.atomic(), pytest.raises(TypeError, match="key="):
        once(key)  # type: ignore[arg-type]


@transactional
def test_key_is_written_on_the_alias_that_was_asked_for() -> None:
    with transaction.atomic(using="other"):
        assert once("k", using="other")

    assert JobKey.objects.using("other").count() == 1
    assert JobKey.objects.using("default").count() == 0
