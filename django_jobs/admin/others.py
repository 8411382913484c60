"""The pages of workers, keys and locks."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_jobs.admin.base import ReadOnlyMixin
from django_jobs.admin.display import badge, block, mono, strings, when
from django_jobs.admin.search import MOST_IDS, Search, as_uuid
from django_jobs.models import Job, JobKey, Lock, Worker


class WorkerAdminMixin(ReadOnlyMixin):
    large_fields = ("task_names",)
    empty_text = gettext_lazy("No worker is running. Start one with manage.py runworker.")
    list_display = ("name", "lease", "queues", "host", "pid", "started", "heartbeat")
    ordering = ("-pk",)
    search_fields = ("name",)
    search_help_text = gettext_lazy("A worker's id or name")
    fieldsets = (
        (None, {"fields": (("name", "lease"), ("host", "pid"), ("started", "heartbeat"))}),
        (gettext_lazy("What it serves"), {"fields": ("queues", "tasks")}),
    )

    def search(self, request: HttpRequest, term: str) -> Search:
        given = as_uuid(term)
        # A row for each process: they are few.
        return Search(Q(pk=given) if given else Q(name__icontains=term), ("-pk",))

    @admin.display(description=gettext_lazy("lease"))
    def lease(self, worker: Worker) -> SafeString:
        return badge("alive" if worker.lease_expires_at > timezone.now() else "expired")

    @admin.display(description=gettext_lazy("queues"))
    def queues(self, worker: Worker) -> str:
        return ", ".join(strings(worker.queue_names)) if worker.queue_names else _("all")

    @admin.display(description=gettext_lazy("tasks"))
    def tasks(self, worker: Worker) -> SafeString:
        return block("\n".join(strings(worker.task_names)))

    @admin.display(description=gettext_lazy("started"))
    def started(self, worker: Worker) -> SafeString:
        return when(worker.started_at)

    @admin.display(description=gettext_lazy("last heartbeat"))
    def heartbeat(self, worker: Worker) -> SafeString:
        return when(worker.heartbeat_at)


class JobKeyAdminMixin(ReadOnlyMixin):
    empty_text = gettext_lazy("No key is held. Keys come from enqueueing with key= and from once().")
    list_display = ("key_shown", "scope", "holder", "created", "expires")
    ordering = ("-pk",)
    search_fields = ("key",)
    search_help_text = gettext_lazy("A key, or the id of the job that holds it")
    fieldsets = ((None, {"fields": (("key_shown", "scope"), "holder_link", ("created", "expires"))}),)

    def search(self, request: HttpRequest, term: str) -> Search:
        given = as_uuid(term)
        if given is None:
            return Search(Q(key=term), ("key", "scope"))
        keys = self.get_queryset(request).order_by().values("pk")
        # One index after the other: for an OR PostgreSQL may walk over all keys instead, in the order of the list.
        either = keys.filter(key=term).union(keys.filter(holder_id=given))[:MOST_IDS]
        return Search(Q(pk__in=[each["pk"] for each in either]), ("-pk",))

    @admin.display(description=gettext_lazy("key"))
    def key_shown(self, key: JobKey) -> SafeString:
        return mono(key.key)

    @admin.display(description=gettext_lazy("holder"))
    def holder(self, key: JobKey) -> SafeString:
        return mono(key.holder_id)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> JobKey | None:
        key: Any = super().get_object(request, object_id, from_field)
        if key:
            key.holder_html = self.link(request, Job, key.holder_id)
        return key  # type: ignore[no-any-return]

    @admin.display(description=gettext_lazy("holder"))
    def holder_link(self, key: JobKey) -> SafeString:
        return key.holder_html  # type: ignore[attr-defined,no-any-return]

    @admin.display(description=gettext_lazy("created"))
    def created(self, key: JobKey) -> SafeString:
        return when(key.created_at)

    @admin.display(description=gettext_lazy("expires"))
    def expires(self, key: JobKey) -> SafeString | str:
        return when(key.expires_at) if key.expires_at else _("never")


class LockAdminMixin(ReadOnlyMixin):
    empty_text = gettext_lazy("No lock has been taken yet. lock(name, ttl=...) makes one.")
    list_display = ("name", "state", "fencing_number", "owner_shown", "acquired", "expires")
    ordering = ("pk",)
    search_fields = ("name",)
    search_help_text = gettext_lazy("The beginning of a lock's name")
    fieldsets = ((None, {"fields": (("name", "state"), ("fencing_number", "owner_shown"), ("acquired", "expires"))}),)

    def search(self, request: HttpRequest, term: str) -> Search:
        return Search(Q(pk__startswith=term), ("pk",))

    @admin.display(description=gettext_lazy("lease"))
    def state(self, lock: Lock) -> SafeString:
        return badge("held" if lock.owner and lock.expires_at > timezone.now() else "free")

    @admin.display(description=gettext_lazy("owner"))
    def owner_shown(self, lock: Lock) -> SafeString:
        return mono(lock.owner)

    @admin.display(description=gettext_lazy("acquired"))
    def acquired(self, lock: Lock) -> SafeString:
        return when(lock.acquired_at)

    @admin.display(description=gettext_lazy("expires"))
    def expires(self, lock: Lock) -> SafeString:
        return when(lock.expires_at)
