"""Asking for the admin's pages, as a person would."""

from __future__ import annotations

import html
import re
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import connection, models
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse


def address(model: type[models.Model], page: str, *args: object) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


class Asker(NamedTuple):
    """Asks as one client."""

    client: Client

    def list(self, model: type[models.Model], **query: str) -> str:
        return self._page(self.client.get(address(model, "changelist"), query))

    def page(self, row: models.Model) -> str:
        return self._page(self.client.get(address(type(row), "change", row.pk)))

    def history(self, row: models.Model) -> str:
        return self._page(self.client.get(address(type(row), "history", row.pk)))

    def press(self, row: models.Model, button: str) -> str:
        """Press a button on the row's own page, and read the page that answers."""
        return self._page(self.client.post(address(type(row), button, row.pk), follow=True))

    def act(self, action: str, *rows: models.Model, across: bool = False, **query: str) -> str:
        """Choose an action in the list, and read the page that asks to confirm it."""
        url = f"{address(type(rows[0]), 'changelist')}?{urlencode(query)}"
        data = {"action": action, "index": 0, "select_across": int(across), **ticked(*rows)}
        return self._page(self.client.post(url, data, follow=True))

    def confirm(self, page: str, model: type[models.Model], **query: str) -> str:
        """Send the form of a page that asked, or of one that shows progress."""
        url = f"{address(model, 'changelist')}?{urlencode(query)}"
        return self._page(self.client.post(url, hidden_fields(page), follow=True))

    def act_and_confirm(self, action: str, *rows: models.Model, across: bool = False, **query: str) -> str:
        model = type(rows[0])
        page = self.confirm(self.act(action, *rows, across=across, **query), model, **query)
        while 'id="dj-continue"' in page:
            page = self.confirm(page, model, **query)
        return page

    def _page(self, response: Any) -> str:
        assert isinstance(response, HttpResponse)
        assert response.status_code == 200
        return response.content.decode()


def ticked(*rows: models.Model) -> dict[str, list[str]]:
    return {ACTION_CHECKBOX_NAME: [str(row.pk) for row in rows]}


def hidden_fields(page: str) -> dict[str, list[str]]:
    """What the form of our own pages sends."""
    form = page[page.index("dj-confirm-form") :]
    fields: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form):
        fields.setdefault(name, []).append(value)
    return fields


def messages_of(page: str) -> str:
    """The text of the messages at the top of a page."""
    found = re.search(r'<ul class="messagelist">(.*?)</ul>', page, re.DOTALL)
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", found.group(1)))).strip() if found else ""


def listed(page: str) -> list[str]:
    """The keys of the rows in a list, by their links."""
    body = page[page.index('id="result_list"') :] if 'id="result_list"' in page else ""
    return re.findall(r'<th class="field-[^"]+"><a href="[^"]*/([^/"]+)/change/', body)


def statements(queries: CaptureQueriesContext) -> list[str]:
    return [str(query["sql"]) for query in queries.captured_queries]


def watch() -> CaptureQueriesContext:
    return CaptureQueriesContext(connection)
