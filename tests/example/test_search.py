"""The search index of each database, with the same answers from all of them."""

from __future__ import annotations

import pytest

from shop import search
from shop.models import Product, SearchDocument

# InnoDB's full text shows committed rows only.
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("miles", ["So What"]),
        ("blue", ["Blue in Green", "So What"]),  # in the title before in the album
        ("kind evans", ["Blue in Green"]),
        ("gree", ["Blue in Green"]),
        ("carcere", ["Sonho de Cárcere"]),
        ("CÁRCERE bethania", ["Sonho de Cárcere"]),
        ("miles evans", []),
        ("", []),
        ("%_ ' \" ; -- :* ) &", []),
        ("so' OR what", []),
        ("blue* & !green", ["Blue in Green"]),
    ],
)
def test_every_word_must_begin_a_word_of_the_product(products: list[Product], query: str, names: list[str]) -> None:
    search.index(products)

    assert [each.name for each in search.find(query)] == names


def test_an_index_written_twice_has_each_product_once(products: list[Product]) -> None:
    search.index(products)
    search.index(products)

    assert SearchDocument.objects.count() == len(products)
    assert len(search.find("blue")) == 2


def test_the_index_follows_a_new_name(products: list[Product]) -> None:
    search.index(products)
    products[0].name = "Flamenco Sketches"
    search.index(products)

    assert search.find("flamenco") == [products[0]]
    assert search.find("what") == []


def test_a_deleted_product_is_not_found(products: list[Product]) -> None:
    search.index(products)
    products[0].delete()

    assert search.find("miles") == []


def test_the_limit_holds(products: list[Product]) -> None:
    search.index(products)

    assert len(search.find("kind", limit=1)) == 1
