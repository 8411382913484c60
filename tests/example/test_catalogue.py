"""The catalogue that the shop loads, from the real data set."""

from __future__ import annotations

from decimal import Decimal

import pytest

from shop import catalogue
from shop.models import Account, Customer, Product

pytestmark = pytest.mark.django_db


def test_there_are_at_least_three_thousand_real_products() -> None:
    count = catalogue.load()

    assert count == Product.objects.count() == 3503
    assert Product.objects.filter(price__in=[Decimal("0.99"), Decimal("1.99")]).count() == count
    assert Product.objects.get(name="So What", artist="Miles Davis").album
    assert Account.objects.count() == Customer.objects.count() == 59


def test_a_shop_that_has_products_is_left_alone(products: list[Product]) -> None:
    assert catalogue.load() == len(products)


def test_no_customer_has_an_address_of_a_real_domain() -> None:
    catalogue.load()

    assert not Customer.objects.exclude(email__endswith="@mail.example").exists()


@pytest.mark.parametrize(
    ("track", "kept"),
    [
        ({"name": None}, False),
        ({"name": "  "}, False),
        ({"unit_price": None}, False),
        ({"unit_price": 0}, False),
        ({"name": 1999}, True),
        ({"composer": None, "genre": None, "album": None, "milliseconds": None}, True),
    ],
)
def test_rows_with_holes_are_cleaned_or_left_out(track: dict[str, object], kept: bool) -> None:
    whole = {"name": "A", "album": 1, "genre": 1, "composer": "B", "milliseconds": 61000, "unit_price": 0.99}
    rows = {"track": {1: {**whole, **track}}, "album": {}, "artist": {}, "genre": {}}

    found = list(catalogue.products(rows))

    assert len(found) == kept
    for each in found:
        each.full_clean(exclude=["artist", "album", "genre", "composer"])


def test_text_loses_what_no_database_takes() -> None:
    assert catalogue._text("a\x00\n b" + "c" * 300, 10) == "a bccccccc"
