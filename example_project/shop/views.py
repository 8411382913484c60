"""The pages of the shop. Those that start jobs do so inside the transaction that gives the jobs their reason."""

from __future__ import annotations

import uuid
from datetime import timedelta
from uuid import UUID

from django.contrib import messages
from django.contrib.admin.views.decorators import staff_member_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from django_jobs import enqueue, enqueue_many
from shop import basket, search
from shop.models import Account, NightlyReport, Order, Product, SearchDocument
from shop.orders import CheckoutForm, place_order, read_quantities
from shop.progress import is_settled, steps_of
from shop.tasks import nightly_report, reindex_products, sync_account

MOST_FOUND = 48


@require_GET
def catalogue(request: HttpRequest) -> HttpResponse:
    query = request.GET.get("q", "").strip()[:100]
    genre = request.GET.get("genre", "")
    shelf = Product.objects.filter(genre=genre) if genre else Product.objects.all()
    page = None if query else Paginator(shelf.order_by("pk"), 24).get_page(request.GET.get("page"))
    return render(
        request,
        "shop/catalogue.html",
        {
            "query": query,
            "genre": genre,
            "genres": Product.objects.exclude(genre="").order_by("genre").values_list("genre", flat=True).distinct(),
            "page": page,
            "products": search.find(query, limit=MOST_FOUND) if query else page,
            "most": MOST_FOUND,
            "is_index_empty": bool(query) and not SearchDocument.objects.exists(),
        },
    )


@require_GET
def show_basket(request: HttpRequest, form: CheckoutForm | None = None, status: int = 200) -> HttpResponse:
    lines = basket.lines(request)
    context = {"lines": lines, "total": basket.total(lines), "form": form or CheckoutForm()}
    return render(request, "shop/basket.html", context, status=status)


@require_POST
def add_to_basket(request: HttpRequest, pk: int) -> HttpResponse:
    product = get_object_or_404(Product, pk=pk)
    basket.add(request, product)
    messages.success(request, f"“{product.name}” is in your basket.")
    return redirect("shop:basket")


@require_POST
def remove_from_basket(request: HttpRequest, pk: int) -> HttpResponse:
    basket.remove(request, get_object_or_404(Product, pk=pk))
    return redirect("shop:basket")


@require_POST
def checkout(request: HttpRequest) -> HttpResponse:
    """Place the order whose lines the form carries."""
    form = CheckoutForm(request.POST)
    if not form.is_valid():
        messages.error(request, "We need your name and an e-mail address for the invoice.")
        return redirect("shop:basket")
    try:
        quantities = read_quantities(request.POST)
    except ValueError as error:
        return HttpResponseBadRequest(str(error), content_type="text/plain; charset=utf-8")
    order = place_order(quantities=quantities, **form.cleaned_data)
    basket.clear(request)
    request.session["orders"] = [str(order.pk), *request.session.get("orders", [])][:10]
    return redirect(order)


@require_GET
def orders(request: HttpRequest) -> HttpResponse:
    """The orders placed from this browser."""
    placed = Order.objects.filter(pk__in=request.session.get("orders", [])).select_related("customer", "invoice")
    return render(request, "shop/orders.html", {"orders": placed})


@require_GET
def order(request: HttpRequest, pk: UUID) -> HttpResponse:
    return render(request, "shop/order.html", _order_context(pk))


@require_GET
def order_jobs(request: HttpRequest, pk: UUID) -> HttpResponse:
    """The part of the order's page that moves."""
    return render(request, "shop/order_jobs.html", _order_context(pk))


def _order_context(pk: UUID) -> dict[str, object]:
    found = get_object_or_404(Order.objects.select_related("customer", "invoice"), pk=pk)
    steps = steps_of(found)
    return {"order": found, "steps": steps, "is_settled": is_settled(found, steps)}


@staff_member_required
@require_GET
def office(request: HttpRequest) -> HttpResponse:
    return render(
        request,
        "shop/office.html",
        {
            "accounts": Account.objects.select_related("customer").order_by("partner_id"),
            "reports": NightlyReport.objects.all()[:7],
            "products": Product.objects.count(),
            "documents": SearchDocument.objects.count(),
        },
    )


@staff_member_required
@require_POST
def sync_accounts(request: HttpRequest) -> HttpResponse:
    """Enqueue one job for each account. `unique="live"`: not while the account's last one is still at work."""
    each = sync_account.using
    handles = enqueue_many(
        each(key=f"sync-account:{pk}", unique="live").bind(pk) for pk in Account.objects.values_list("pk", flat=True)
    )
    created = sum(handle.created for handle in handles)
    messages.success(request, f"{created} accounts are being synchronised.")
    return redirect("shop:office")


@staff_member_required
@require_POST
def rebuild_search(request: HttpRequest) -> HttpResponse:
    rebuild = uuid.uuid4().hex[:12]
    enqueue(reindex_products.using(key=f"reindex:{rebuild}:0"), rebuild)
    messages.success(request, "The search index is being rebuilt.")
    return redirect("shop:office")


@staff_member_required
@require_POST
def report_yesterday(request: HttpRequest) -> HttpResponse:
    day = timezone.localdate() - timedelta(days=1)
    handle = enqueue(nightly_report.using(key=f"nightly-report:{day}"), day)
    messages.success(
        request, f"The report of {day} {'is being written' if handle.created else 'was asked for before'}."
    )
    return redirect("shop:office")
