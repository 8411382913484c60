"""What `manage.py serve --trouble` does first: a day on which things go wrong, and nobody has mended them yet."""

from __future__ import annotations

import uuid

from demo.browser import Browser
from demo.running import ADMIN, RunningShop
from demo.story import Story
from django_jobs import enqueue
from shop.models import Account, Customer
from shop.tasks import process_order, sync_account

ORDERS = 24
GREYLISTED = 2


def make_trouble(shop: RunningShop) -> None:
    """Sell, and leave dead letters of several kinds for the admin. The last of them die within half a minute."""
    story = Story(shop, orders=ORDERS)
    story.break_things()
    shop.mailbox.refuse(
        [order.email for order in story.orders[-GREYLISTED:]], reply="451 4.7.1 Greylisted, come again later"
    )
    story.browser.log_in(ADMIN, shop.password)
    story.office()
    client = Browser(shop.web.url)
    client.get("/basket/")
    for order in story.orders:
        client.post("/orders/place/", order.fields)
    _forget_rows()


def _forget_rows() -> None:
    """Two jobs whose rows were deleted while they waited."""
    customer = Customer.objects.create(name="Closed Account", email="closed@shop.example")
    account = Account.objects.create(customer=customer, partner_id="CHK-9999")
    deleted = account.pk
    customer.delete()
    enqueue(sync_account, deleted)
    enqueue(process_order.using(max_attempts=1), uuid.uuid4())
