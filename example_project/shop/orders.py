"""Placing an order: the one write that starts everything."""

from __future__ import annotations

from collections.abc import Mapping

from django import forms
from django.db import transaction
from django.http import QueryDict

from django_jobs import enqueue
from shop.basket import MOST_LINES, MOST_OF_ONE
from shop.models import Customer, Order, OrderLine, Product
from shop.tasks import process_order


class CheckoutForm(forms.Form):
    name = forms.CharField(max_length=120, widget=forms.TextInput({"autocomplete": "name", "placeholder": "Your name"}))
    email = forms.EmailField(widget=forms.EmailInput({"autocomplete": "email", "placeholder": "you@example.com"}))


def place_order(*, name: str, email: str, quantities: Mapping[Product, int]) -> Order:
    """Write an order and enqueue what is to be done about it: both, or, whatever fails, neither."""
    with transaction.atomic():
        customer, _ = Customer.objects.get_or_create(email=email.lower(), defaults={"name": name})
        order = Order.objects.create(customer=customer)
        OrderLine.objects.bulk_create(
            OrderLine(order=order, product=product, quantity=quantity, unit_price=product.price)
            for product, quantity in quantities.items()
        )
        job = enqueue(process_order, order.pk)
        order.job_id = job.id
        order.save(update_fields=["job_id"])
    return order


def read_quantities(data: QueryDict) -> dict[Product, int]:
    """Products and quantities from the fields `product` and `quantity`, which come in pairs.

    Raises:
        ValueError: a field is no number, out of range, or names no product.
    """
    pairs = list(zip(data.getlist("product"), data.getlist("quantity"), strict=True))
    if not 1 <= len(pairs) <= MOST_LINES:
        raise ValueError(f"An order has 1 to {MOST_LINES} lines, not {len(pairs)}.")
    wanted: dict[int, int] = {}
    for product, quantity in pairs:
        if not 1 <= int(quantity) <= MOST_OF_ONE:
            raise ValueError(f"One can order 1 to {MOST_OF_ONE} of a product, not {quantity}.")
        wanted[int(product)] = wanted.get(int(product), 0) + int(quantity)
    found = Product.objects.in_bulk(list(wanted))
    if missing := wanted.keys() - found.keys():
        raise ValueError(f"There is no product {min(missing)}.")
    return {found[each]: quantity for each, quantity in wanted.items()}
