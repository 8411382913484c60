"""The pages of the shop, and the jobs that they start in the same transaction."""

from __future__ import annotations

import re
import uuid

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_jobs import cancel
from django_jobs.models import Job
from shop import search
from shop.models import Account, Customer, Order, Product
from shop.orders import place_order

pytestmark = [pytest.mark.django_db, pytest.mark.urls("config.urls")]
BUYER = {"name": "Ella", "email": "Ella@mail.example"}


def order_form(*lines: tuple[object, object]) -> dict[str, object]:
    return {**BUYER, "product": [each for each, _ in lines], "quantity": [each for _, each in lines]}


def test_the_catalogue_shows_products_by_page_and_genre(client: Client, products: list[Product]) -> None:
    Product.objects.filter(pk=products[0].pk).update(genre="Cool")

    assert client.get("/").content.count(b'class="card"') == 3
    assert client.get("/?genre=Cool").content.count(b'class="card"') == 1
    assert client.get("/?page=99").status_code == 200


@pytest.mark.django_db(transaction=True)
def test_the_catalogue_can_be_searched(client: Client, products: list[Product]) -> None:
    assert b"The search index is empty" in client.get("/?q=miles").content

    search.index(products)

    assert b"So What" in client.get("/?q=miles").content


def test_what_is_put_into_the_basket_is_ordered(client: Client, products: list[Product]) -> None:
    client.post(f"/basket/add/{products[0].pk}/")
    client.post(f"/basket/add/{products[0].pk}/")
    page = client.get("/basket/").content.decode()
    fields = dict(re.findall(r'type="hidden" name="(product|quantity)" value="(\d+)"', page))

    response = client.post("/orders/place/", {**BUYER, **fields})

    order = Order.objects.get()
    assert response.url == order.get_absolute_url()  # type: ignore[attr-defined]
    assert [(line.product, line.quantity) for line in order.lines.all()] == [(products[0], 2)]
    assert order.customer.email == "ella@mail.example"
    assert b"It is empty" in client.get("/basket/").content
    assert str(order.pk) in client.get("/orders/").content.decode()


def test_an_order_and_its_job_are_written_together(client: Client, products: list[Product]) -> None:
    client.post("/orders/place/", order_form((products[0].pk, 1), (products[1].pk, 2)))

    assert Job.objects.get().pk == Order.objects.get().job_id


def test_an_order_that_fails_leaves_no_job(products: list[Product]) -> None:
    with pytest.raises(Exception, match=r"shop_line_quantity|CHECK|constraint"):
        place_order(name="Ella", email="ella@mail.example", quantities={products[0]: 0})

    assert not Order.objects.exists()
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([(0, 1)], "There is no product 0"),
        ([("x", 1)], "invalid literal"),
        ([], "1 to 40 lines, not 0"),
        ([("first", 0)], "1 to 99 of a product, not 0"),
        ([("first", 100)], "1 to 99 of a product, not 100"),
        ([("first", 1)] * 41, "1 to 40 lines, not 41"),
    ],
)
def test_a_form_with_nonsense_is_refused_with_the_reason(
    client: Client, products: list[Product], lines: list[tuple[object, object]], words: str
) -> None:
    given = [(products[0].pk if product == "first" else product, quantity) for product, quantity in lines]

    response = client.post("/orders/place/", order_form(*given))

    assert response.status_code == 400
    assert words in response.content.decode()
    assert not Job.objects.exists()


def test_one_product_on_two_lines_becomes_one_line(client: Client, products: list[Product]) -> None:
    client.post("/orders/place/", order_form((products[0].pk, 1), (products[0].pk, 2)))

    assert Order.objects.get().lines.get().quantity == 3


def test_an_order_needs_an_address(client: Client, products: list[Product]) -> None:
    response = client.post("/orders/place/", {**order_form((products[0].pk, 1)), "email": "nobody"})

    assert response.status_code == 302
    assert not Order.objects.exists()


def test_an_order_shows_its_job_and_why_it_waits(client: Client, products: list[Product]) -> None:
    order = place_order(name="Ella", email="ella@mail.example", quantities={products[0]: 1})

    page = client.get(f"{order.get_absolute_url()}jobs/").content.decode()

    assert "Stock and invoice" in page
    assert "Waits for a worker with a free hand." in page
    assert "data-settled" not in page


def test_a_cancelled_job_is_settled(client: Client, products: list[Product]) -> None:
    order = place_order(name="Ella", email="ella@mail.example", quantities={products[0]: 1})
    assert order.job_id
    cancel(order.job_id)

    assert "data-settled" in client.get(order.get_absolute_url()).content.decode()


def test_an_unknown_order_is_not_found(client: Client) -> None:
    assert client.get(f"/orders/{uuid.uuid4()}/").status_code == 404


def test_names_are_escaped(client: Client, products: list[Product]) -> None:
    Product.objects.filter(pk=products[0].pk).update(name="<script>alert(1)</script>")

    assert b"<script>alert" not in client.get("/").content


@pytest.mark.parametrize("page", ["", "sync-accounts/", "rebuild-search/", "report-yesterday/"])
def test_the_office_is_for_staff(client: Client, page: str) -> None:
    response = client.get("/office/") if not page else client.post(f"/office/{page}")

    assert "/admin/login/" in response.url  # type: ignore[attr-defined]
    assert not Job.objects.exists()


def test_accounts_are_synchronised_once_at_a_time(client: Client, customer: Customer) -> None:
    client.force_login(User.objects.create_superuser("admin"))
    Account.objects.create(customer=customer, partner_id="CHK-0001")

    client.post("/office/sync-accounts/")
    response = client.post("/office/sync-accounts/", follow=True)

    assert Job.objects.count() == 1
    assert b"0 accounts are being synchronised" in response.content


def test_the_office_starts_a_rebuild_and_a_report(client: Client, customer: Customer) -> None:
    client.force_login(User.objects.create_superuser("admin"))

    client.post("/office/rebuild-search/")
    client.post("/office/report-yesterday/")
    response = client.post("/office/report-yesterday/", follow=True)

    assert sorted(Job.objects.values_list("task_name", flat=True)) == [
        "shop.tasks.nightly_report",
        "shop.tasks.reindex_products",
    ]
    assert b"was asked for before" in response.content
