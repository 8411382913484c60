"""What all our admin pages share: read-only, bounded in what they ask of the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from django.conf import settings
from django.contrib import admin
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.exceptions import ImproperlyConfigured
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.module_loading import import_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_jobs.admin.display import NOTHING, mono
from django_jobs.admin.search import Search
from django_jobs.conf import read
from django_jobs.models.fields import Readable

MOST_COUNTED = 10_000
MOST_SEARCHED = 100_000  # rows that are looked through for a filter that no index serves


def _base() -> type[admin.ModelAdmin[Any]]:
    """The class that DJANGO_JOBS["ADMIN_BASE"] names.

    Raises:
        ImproperlyConfigured: it cannot be imported, or is no ModelAdmin.
    """
    # What is wrong with other keys is for the system checks to say, which come after this import.
    name = read(getattr(settings, "DJANGO_JOBS", {}))[0].ADMIN_BASE
    try:
        found = import_string(name)
    except ImportError as error:
        raise ImproperlyConfigured(f'DJANGO_JOBS["ADMIN_BASE"] = {name!r} cannot be imported: {error}') from error
    if not (isinstance(found, type) and issubclass(found, admin.ModelAdmin)):
        raise ImproperlyConfigured(f'DJANGO_JOBS["ADMIN_BASE"] = {name!r} is not a subclass of admin.ModelAdmin.')
    return found


if TYPE_CHECKING:

    class Base(admin.ModelAdmin[Any]): ...

    class Mixin(admin.ModelAdmin[Any]): ...

    class PaginatorBase(Paginator[Any]): ...

else:
    Base = _base()
    Mixin = object
    PaginatorBase = Paginator


class CappedPaginator(PaginatorBase):
    """Counts no further than `MOST_COUNTED`, so that a list costs the same whatever the table holds."""

    @cached_property
    def _counted(self) -> int:
        rows: Any = self.object_list
        # In the order of the list, which is that of the index by which they are found.
        return int(rows.values("pk")[: MOST_COUNTED + 1].count())

    @property
    def count(self) -> int:
        return min(self._counted, MOST_COUNTED)

    @property
    def is_capped(self) -> bool:
        return self._counted > MOST_COUNTED


class Order(NamedTuple):
    """The order of a list: that of an index, whose first column is a time or the key unless it serves filters.

    It has no more columns than the index, in which rows that are equal in all of them have an order of their own.
    """

    columns: tuple[str, ...]
    serves: frozenset[str] = frozenset()  # the filters, besides the one by status, that cost nothing in this order

    @property
    def can_be_cut(self) -> bool:
        return not self.serves


NEWEST_FIRST = Order(("-pk",))
FOUND_ORDER = "_django_jobs_found_order"  # of a request


class LeanChangeList(ChangeList):
    """Selects no large column, and reads each page from an index, whatever the tables hold and their statistics say.

    A list of one status comes in the order of the index over that status. What no index serves is looked for among the
    first `MOST_SEARCHED` rows of the list, which is then said.
    """

    is_cut = False
    model_admin: Any

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        rows = super().get_queryset(request, exclude_parameters)
        found_order = getattr(request, FOUND_ORDER, None)
        rows = rows.order_by(*found_order) if found_order else self._in_order(rows)
        return rows.defer(*self.model_admin.large_fields)

    def _in_order(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self._chosen()
        status = chosen.pop("status", None)
        order: Order = self.model_admin.orders.get(status, NEWEST_FIRST)
        if order.serves.issuperset(chosen):
            return rows.order_by(*order.columns)
        if order.can_be_cut and order is not NEWEST_FIRST:
            return self._cut(rows, self.root_queryset.filter(status=status), order)
        return self._cut(rows, self.root_queryset, NEWEST_FIRST)

    def _chosen(self) -> dict[str, Any]:
        """The filters in force, those of a project's own among them, and a search that no index answers."""
        chosen: dict[str, Any] = {"search": self.query} if self.query else {}
        for each in self.filter_specs:
            if isinstance(each, admin.SimpleListFilter):
                chosen[each.parameter_name or ""] = each.value()
            else:
                chosen.update(each.used_parameters)
        return {name: value for name, value in chosen.items() if value is not None}

    def _cut(self, rows: QuerySet[Any], all_rows: QuerySet[Any], order: Order) -> QuerySet[Any]:
        column = order.columns[0].lstrip("-")
        value = column if order is NEWEST_FIRST else Readable(column)
        found = all_rows.order_by(*order.columns).values_list(value, flat=True)
        last = list(found[MOST_SEARCHED - 1 : MOST_SEARCHED])
        if last:
            self.is_cut = True
            # Both ends: of a range that is open PostgreSQL expects a third of all rows, if it has no statistics.
            rows = rows.filter(**{f"{column}__range": sorted((found[0], *last))})
        return rows.order_by(*order.columns)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        if not self.result_count:
            self.result_list = self.queryset.none()  # the count has looked everywhere; do not look again
        if not self.query and not self.has_active_filters:
            # Nothing is left out, so that the page need not offer to show all, nor an action where there is no row.
            self.full_result_count = self.result_count
            self.show_admin_actions = bool(self.result_count)


class ReadOnlyMixin(Mixin):
    """Shows rows and changes none: what changes a job's state is an action that calls `lifecycle`."""

    large_fields: ClassVar[tuple[str, ...]] = ()  # not selected by lists
    json_fields: ClassVar[tuple[str, ...]] = ()  # read by arguments.py alone
    orders: ClassVar[Mapping[str | None, Order]] = {}  # of the list of one status, if not by the primary key
    empty_text: ClassVar[Any] = _("There is nothing here yet.")

    paginator = CappedPaginator
    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # they count the whole table, once for each choice
    sortable_by = ()
    change_list_template = "admin/django_jobs/change_list.html"
    change_form_template = "admin/django_jobs/change_form.html"

    class Media:
        css = {"all": ["django_jobs/jobs.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer(*self.json_fields)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return _flat(fields for _name, options in self.get_fieldsets(request, obj) for fields in options["fields"])

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        # Any other lookup in the address would tell about columns that are hidden (?payload__contains=), or scan them.
        return lookup in {getattr(each, "parameter_name", None) for each in self.list_filter}

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LeanChangeList

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        context = {
            "empty_text": self.empty_text,
            "most_counted": f"{MOST_COUNTED:,}",
            "most_searched": f"{MOST_SEARCHED:,}",
            **(extra_context or {}),
        }
        return super().changelist_view(request, context)

    def render_change_form(  # noqa: PLR0917 - Django's signature
        self,
        request: HttpRequest,
        context: Any,
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        context = {**context, **self.page(request, obj)}
        return super().render_change_form(request, context, add, change, form_url, obj)

    def page(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """What a row's own page shows besides its fields."""
        return {}

    def alias(self, request: HttpRequest) -> str:
        """The database these rows are in."""
        return self.get_queryset(request).db

    def may(self, request: HttpRequest, model: type[Model]) -> bool:
        """Whether the pages of another of our models are open to this user."""
        other = self.admin_site._registry.get(model)
        return other is not None and other.has_view_permission(request)

    def link(self, request: HttpRequest, model: type[Model], pk: object, text: object = None) -> SafeString:
        """A link to a row's page; the plain text where that page is not open to this user."""
        if pk is None:
            return SafeString(NOTHING)
        shown = mono(pk) if text is None else text
        if not self.may(request, model):
            return format_html("{}", shown)
        return format_html('<a href="{}">{}</a>', self.address(model, "change", pk), shown)

    def address(self, model: type[Model], page: str, *args: object) -> str:
        name = f"{self.admin_site.name}:{model._meta.app_label}_{model._meta.model_name}_{page}"
        try:
            return reverse(name, args=args)
        except NoReverseMatch:  # a name with a slash at its end, say: no page, no link
            return "#"

    def search(self, request: HttpRequest, term: str) -> Search:
        raise NotImplementedError

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        found = self.search(request, term)
        setattr(request, FOUND_ORDER, found.order)  # Django asks for the rows only, and the list is put in order later
        return queryset.filter(found.condition), False


def is_searching(request: HttpRequest) -> bool:
    return bool(request.GET.get(SEARCH_VAR, "").strip())


def _flat(fields: Iterable[Any]) -> list[str]:
    return [name for each in fields for name in (each if isinstance(each, tuple | list) else [each])]
