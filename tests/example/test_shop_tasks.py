"""The five jobs everybody writes, run with the test kit against real servers."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from django_jobs import enqueue, get_job, lock
from django_jobs.models import DeadLetter, Job, JobKey
from django_jobs.runs import EndedRun
from django_jobs.testing import assert_enqueued, enqueued, run_jobs
from services.partner import Server
from services.smtp import Mailbox
from shop import tasks
from shop.management.commands.nightly_scheduler import start_report
from shop.models import Account, Customer, Invoice, InvoiceCounter, NightlyReport, Order, Product, SearchDocument
from shop.orders import place_order

pytestmark = pytest.mark.django_db


@pytest.fixture
def order(products: list[Product]) -> Order:
    return place_order(name="Ella", email="ella@mail.example", quantities={products[0]: 2, products[1]: 1})


@pytest.fixture
def account(customer: Customer) -> Account:
    return Account.objects.create(customer=customer, partner_id="CHK-0001")


@pytest.fixture
def invoice(order: Order) -> Invoice:
    run_jobs(queues=["orders"])
    return Invoice.objects.get(order=order)


def outcomes(runs: list[EndedRun]) -> list[tuple[str, str]]:
    return [(run.task_name.removeprefix("shop.tasks."), str(run.status)) for run in runs]


class TestProcessOrder:
    def test_it_reserves_the_stock_writes_the_invoice_and_enqueues_the_mail(self, order: Order) -> None:
        runs = run_jobs(queues=["orders"])

        invoice = Invoice.objects.get(order=order)
        assert outcomes(runs) == [("process_order", "succeeded")]
        assert list(Product.objects.order_by("pk").values_list("stock", flat=True)) == [8, 9, 10]
        assert str(invoice.total) == "2.97"
        mail = assert_enqueued(tasks.send_invoice_email, args=(invoice.pk,), key=f"invoice-email:{invoice.pk}")
        assert mail.id == invoice.mail_job_id

    def test_what_is_sold_out_leaves_nothing_half_done(self, order: Order, products: list[Product]) -> None:
        Product.objects.filter(pk=products[1].pk).update(stock=0)

        runs = run_jobs()

        assert outcomes(runs) == [("process_order", "failed")]
        assert "Restock it, then replay" in DeadLetter.objects.get().error_text
        assert Product.objects.get(pk=products[0].pk).stock == 10
        assert not Invoice.objects.exists()
        assert not enqueued(tasks.send_invoice_email)

    def test_invoices_are_numbered_without_gaps_whatever_fails(self, products: list[Product]) -> None:
        for quantity in (1, 11, 1, 11, 1):  # eleven are more than there are
            place_order(name="Ella", email="ella@mail.example", quantities={products[0]: quantity})

        run_jobs(queues=["orders"])

        assert list(Invoice.objects.order_by("pk").values_list("number", flat=True)) == [1, 2, 3]
        assert InvoiceCounter.objects.get().last_number == 3


class TestSendInvoiceEmail:
    def test_it_sends_one_mail_under_the_invoices_own_message_id(self, invoice: Invoice, mailbox: Mailbox) -> None:
        runs = run_jobs()

        assert outcomes(runs) == [("send_invoice_email", "succeeded")]
        assert mailbox.message_ids() == [invoice.message_id]

    def test_enqueued_again_it_is_the_same_job(self, invoice: Invoice, mailbox: Mailbox) -> None:
        again = enqueue(tasks.send_invoice_email.using(key=f"invoice-email:{invoice.pk}"), invoice.pk)
        run_jobs()
        later = enqueue(tasks.send_invoice_email.using(key=f"invoice-email:{invoice.pk}"), invoice.pk)
        run_jobs()

        assert (again.created, later.created) == (False, False)
        assert mailbox.received() == 1

    def test_what_was_sent_is_not_sent_again(self, invoice: Invoice, mailbox: Mailbox) -> None:
        run_jobs()

        assert tasks.send_invoice_email(invoice.pk) == "sent before"
        assert mailbox.received() == 1

    def test_a_refused_recipient_is_given_up_at_once(self, invoice: Invoice, mailbox: Mailbox) -> None:
        mailbox.refuse(["ella@mail.example"])

        run_jobs()

        letter = DeadLetter.objects.get()
        assert letter.attempt == 1
        assert "550" in letter.error_text
        assert not Job.objects.exists()

    def test_a_mail_server_that_is_down_is_tried_again(self, invoice: Invoice, mailbox: Mailbox) -> None:
        mailbox.refuse(["ella@mail.example"], reply="451 4.7.1 Come back later")

        run_jobs()

        assert invoice.mail_job_id
        assert get_job(invoice.mail_job_id).status == "scheduled"
        assert not DeadLetter.objects.exists()


class TestSyncAccount:
    def test_it_copies_what_the_partner_says(self, account: Account, partner: Server) -> None:
        enqueue(tasks.sync_account, account.pk)

        assert outcomes(run_jobs()) == [("sync_account", "succeeded")]
        account.refresh_from_db()
        assert account.tier
        assert account.synced_at

    def test_a_busy_partner_decides_when_we_come_back(self, account: Account, partner: Server) -> None:
        partner.partner.change({"busy": 1.0, "retry_after": 120})
        job = enqueue(tasks.sync_account, account.pk)

        (run,) = run_jobs()

        assert run.retry_in == timedelta(seconds=120)
        assert get_job(job.id).status == "scheduled"

    @pytest.mark.parametrize("fault", [{"down": 1.0}, {"hang": 1.0, "hanging_for": 1.0}])
    def test_what_may_pass_is_tried_again(self, account: Account, partner: Server, fault: dict[str, float]) -> None:
        partner.partner.change(fault)
        job = enqueue(tasks.sync_account, account.pk)

        assert outcomes(run_jobs(max_jobs=1)) == [("sync_account", "failed")]
        assert get_job(job.id).failures == 1

    def test_a_closed_account_is_given_up_at_once(self, account: Account, partner: Server) -> None:
        partner.partner.change({"gone": ["CHK-0001"]})
        enqueue(tasks.sync_account, account.pk)

        run_jobs()

        assert DeadLetter.objects.get().reason == "gave_up"


class TestReindexProducts:
    @pytest.mark.parametrize(("products_in_all", "pages"), [(3, 2), (4, 3), (5, 3)])
    def test_each_page_enqueues_the_next(
        self, products: list[Product], monkeypatch: pytest.MonkeyPatch, products_in_all: int, pages: int
    ) -> None:
        monkeypatch.setattr(tasks, "PAGE", 2)
        for number in range(products_in_all - len(products)):
            Product.objects.create(name=f"More {number}", seconds=1, price=1, stock=1)
        enqueue(tasks.reindex_products, "monday")

        assert len(run_jobs()) == pages
        assert SearchDocument.objects.count() == products_in_all

    def test_a_page_run_twice_has_one_successor(self, products: list[Product], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tasks, "PAGE", 2)
        for _ in range(2):
            enqueue(tasks.reindex_products, "monday")

        assert len(run_jobs()) == 3


class TestNightlyReport:
    DAY = date(2026, 3, 1)

    @pytest.mark.parametrize(
        ("placed_at", "orders", "revenue"),
        [  # by the shop's own clock, which is an hour ahead of UTC
            (datetime(2026, 2, 28, 22, 59, 59, tzinfo=UTC), 0, "0.00"),
            (datetime(2026, 2, 28, 23, tzinfo=UTC), 1, "2.97"),
            (datetime(2026, 3, 1, 22, 59, 59, tzinfo=UTC), 1, "2.97"),
            (datetime(2026, 3, 1, 23, tzinfo=UTC), 0, "0.00"),
        ],
    )
    def test_it_sums_up_the_day(self, invoice: Invoice, placed_at: datetime, orders: int, revenue: str) -> None:
        Order.objects.update(placed_at=placed_at)
        start_report(self.DAY)

        run_jobs(queues=["reports"])

        report = NightlyReport.objects.get()
        assert (report.day, report.orders, str(report.revenue)) == (self.DAY, orders, revenue)

    def test_started_twice_it_runs_once(self, db: None) -> None:
        first, second = start_report(self.DAY), start_report(self.DAY)
        run_jobs()
        third = start_report(self.DAY)
        run_jobs()

        assert "is job" in first
        assert second == third == "The report of 2026-03-01 was started before."
        assert NightlyReport.objects.count() == 1
        assert JobKey.objects.filter(key="nightly-report:2026-03-01").count() == 1

    def test_a_scheduler_leaves_the_night_to_the_one_that_holds_the_lock(self, db: None) -> None:
        with lock("nightly-report:2026-03-01", ttl=60):
            said = start_report(self.DAY)

        assert said == "The report of 2026-03-01 is being started by another scheduler."
        assert not Job.objects.exists()

    def test_a_day_without_orders_is_reported_too(self, db: None) -> None:
        start_report(self.DAY)
        run_jobs()

        assert NightlyReport.objects.get().revenue == 0
