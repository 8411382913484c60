"""The five jobs everybody writes, to copy from.

They share four habits. Arguments are ids, and the row is read when the job runs. Database effects belong in `atomic`
tasks, where they happen exactly once. Effects outside the database happen at least once, and the task says what that
means. And what will not get better by trying again gives up at once, so that a person sees it.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from smtplib import SMTPException, SMTPRecipientsRefused
from uuid import UUID

from django.core.mail import EmailMessage
from django.db.models import Count, F, Sum
from django.template.loader import render_to_string
from django.utils import timezone

from django_jobs import Backoff, GiveUp, Retry, enqueue, task
from shop import partner, search
from shop.models import Account, Invoice, InvoiceCounter, NightlyReport, Order, Product

PAGE = 500


@task(queue_name="orders", priority=10, atomic=True, timeout=30, backoff=Backoff(base=1, cap=60))
def process_order(order_id: UUID) -> int:
    """Reserve the stock, write the invoice and enqueue its mail: all of it, exactly once.

    `atomic=True` runs this in the transaction that also finishes the job. A worker that is killed half way leaves
    nothing behind, and the next one starts from the beginning.
    """
    order = Order.objects.select_for_update().get(pk=order_id)
    # Always in the same order, so that two orders of the same two products never wait for each other.
    for line in order.lines.order_by("product_id"):
        reserved = Product.objects.filter(pk=line.product_id, stock__gte=line.quantity)
        if not reserved.update(stock=F("stock") - line.quantity):
            raise GiveUp(f"Product {line.product_id} has fewer than {line.quantity} left. Restock it, then replay.")
    invoice = Invoice.objects.create(order=order, number=_next_invoice_number(), total=order.total())
    mail = enqueue(send_invoice_email.using(key=f"invoice-email:{invoice.pk}"), invoice.pk)
    Invoice.objects.filter(pk=invoice.pk).update(mail_job_id=mail.id)
    return invoice.number


def _next_invoice_number() -> int:
    counter, _ = InvoiceCounter.objects.select_for_update().get_or_create(pk=1)
    counter.last_number += 1
    counter.save()
    return counter.last_number


@task(queue_name="mail", timeout=60, retry_on=(SMTPException, OSError), backoff=Backoff(base=2, cap=60))
def send_invoice_email(invoice_id: int) -> str:
    """Send an invoice by mail.

    The key `invoice-email:<id>` makes it one job for each invoice, however often it is enqueued. The mail itself is at
    least once: no mail server takes part in our transaction, so a worker killed between the server's "250 OK" and the
    next line sends it again. The Message-ID is the same then, and mailboxes show one of the two.
    """
    invoice = Invoice.objects.select_related("order__customer").get(pk=invoice_id)
    if invoice.mailed_at:
        return "sent before"
    customer = invoice.order.customer
    mail = EmailMessage(
        subject=f"Your invoice {invoice.number:06}",
        body=render_to_string(
            "shop/invoice.txt", {"invoice": invoice, "lines": invoice.order.lines.select_related("product")}
        ),
        to=[customer.email],
        headers={"Message-ID": invoice.message_id},
    )
    try:
        mail.send()
    except SMTPRecipientsRefused as refusal:
        # 5xx is for ever: a person has to mend the address. 4xx (greylisting, a full mailbox) passes.
        code, reason = next(iter(refusal.recipients.values()))
        if code >= 500:
            raise GiveUp(
                f"The mail server refuses the recipient of invoice {invoice.number}: {code} {reason!r}."
            ) from None
        raise
    Invoice.objects.filter(pk=invoice.pk).update(mailed_at=timezone.now())
    return "sent"


@task(
    queue_name="partner",
    timeout=15,
    max_attempts=8,
    retry_on=(partner.Unavailable,),
    backoff=Backoff(base=0.5, cap=5),
)
def sync_account(account_id: int) -> int:
    """Fetch an account's points from the partner.

    It is not atomic, because a transaction must not wait for somebody else's server. It may run twice: it copies a
    state, and the second copy is the same.
    """
    account = Account.objects.get(pk=account_id)
    try:
        state = partner.fetch_account(account.partner_id)
    except partner.TooManyRequests as busy:
        raise Retry(str(busy), delay=busy.retry_after) from busy
    except partner.Rejected as refusal:
        raise GiveUp(str(refusal)) from refusal
    Account.objects.filter(pk=account.pk).update(points=state.points, tier=state.tier, synced_at=timezone.now())
    return state.points


@task(queue_name="search", atomic=True, timeout=60, backoff=Backoff(base=1, cap=60))
def reindex_products(rebuild: str, after: int = 0) -> int:
    """Write one page of the search index and enqueue the next.

    The cursor `after` travels in the next job, which is written by the same transaction as the page: a rebuild that is
    killed goes on where it was. The key has the page in it, so that a page can have one successor only.
    """
    page = list(Product.objects.filter(pk__gt=after).order_by("pk")[:PAGE])
    search.index(page)
    if len(page) == PAGE:
        last = page[-1].pk
        enqueue(reindex_products.using(key=f"reindex:{rebuild}:{last}"), rebuild, after=last)
    return len(page)


@task(queue_name="reports", atomic=True, timeout=300)
def nightly_report(day: date) -> int:
    """Sum up a day, once: the scheduler gives the job a key with the day in it, see `nightly_scheduler`."""
    midnight = timezone.make_aware(datetime.combine(day, time.min))
    next_midnight = timezone.make_aware(datetime.combine(day + timedelta(days=1), time.min))
    invoices = Invoice.objects.filter(order__placed_at__gte=midnight, order__placed_at__lt=next_midnight)
    totals = invoices.aggregate(orders=Count("pk"), revenue=Sum("total"))
    report = NightlyReport.objects.create(day=day, orders=totals["orders"], revenue=totals["revenue"] or 0)
    return report.orders


@task
def ping() -> None:
    """Do nothing. The time it takes to start is what the queue itself costs."""
