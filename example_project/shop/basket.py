"""What a visitor has picked, kept in the session: product id -> quantity."""

from __future__ import annotations

from decimal import Decimal

from django.http import HttpRequest

from shop.models import OrderLine, Product

MOST_LINES = 40  # the session is a cookie
MOST_OF_ONE = 99


def add(request: HttpRequest, product: Product, quantity: int = 1) -> None:
    basket = request.session.setdefault("basket", {})
    if len(basket) < MOST_LINES or str(product.pk) in basket:
        basket[str(product.pk)] = min(basket.get(str(product.pk), 0) + quantity, MOST_OF_ONE)
    request.session.modified = True


def remove(request: HttpRequest, product: Product) -> None:
    request.session.get("basket", {}).pop(str(product.pk), None)
    request.session.modified = True


def clear(request: HttpRequest) -> None:
    request.session.pop("basket", None)


def lines(request: HttpRequest) -> list[OrderLine]:
    """Unsaved lines of what is in the basket and still in the catalogue."""
    basket = request.session.get("basket", {})
    found = Product.objects.in_bulk([int(each) for each in basket])
    return [
        OrderLine(product=found[int(each)], quantity=quantity, unit_price=found[int(each)].price)
        for each, quantity in basket.items()
        if int(each) in found
    ]


def total(of: list[OrderLine]) -> Decimal:
    return sum((each.amount() for each in of), Decimal(0))


def context(request: HttpRequest) -> dict[str, int]:
    """For every page: how many things are in the basket."""
    return {"basket_size": sum(request.session.get("basket", {}).values())}
