"""A browser for the demo: cookies, redirects and forms, and no more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from http.cookiejar import CookieJar
from urllib.error import HTTPError
from urllib.parse import urlencode, urljoin
from urllib.request import HTTPCookieProcessor, Request, build_opener

Fields = Sequence[tuple[str, str]]


class PageFailed(Exception):
    """The shop answered with an error. The message holds the address and what the page says."""


@dataclass(frozen=True)
class Page:
    url: str
    html: str

    @property
    def forms(self) -> list[Form]:
        parser = _FormParser()
        parser.feed(self.html)
        return parser.forms

    def form_with(self, name: str) -> Form:
        """The first form that has a field of this name."""
        for form in self.forms:
            if any(each == name for each, _ in form.fields) or name in form.choices:
                return form
        raise PageFailed(f"{self.url} has no form with a field {name!r}.")

    @property
    def messages(self) -> list[str]:
        """What Django's messages framework says on a page of the admin."""
        listed = re.search(r'<ul class="messagelist">(.*?)</ul>', self.html, re.DOTALL)
        items = re.findall(r"<li[^>]*>(.*?)</li>", listed[1], re.DOTALL) if listed else []
        return [unescape(re.sub(r"<[^>]+>", "\n", each)).strip() for each in items]


@dataclass
class Form:
    action: str = ""
    fields: list[tuple[str, str]] = field(default_factory=list)  # what a browser sends without a click
    choices: dict[str, list[str]] = field(default_factory=dict)  # the values of selects and check boxes


class Browser:
    def __init__(self, base: str) -> None:
        self._base = base
        self._cookies = CookieJar()
        self._opener = build_opener(HTTPCookieProcessor(self._cookies))

    def get(self, path: str) -> Page:
        return self._open(Request(urljoin(self._base, path)))

    def post(self, path: str, fields: Iterable[tuple[str, str]]) -> Page:
        """Send a form, with the token that a page visited before has set as a cookie."""
        given = [pair for pair in fields if pair[0] != "csrfmiddlewaretoken"]
        body = urlencode([*given, ("csrfmiddlewaretoken", self._token())]).encode()
        url = urljoin(self._base, path)
        return self._open(Request(url, data=body, headers={"Referer": url}))

    def log_in(self, username: str, password: str) -> None:
        self.get("/admin/login/")
        page = self.post("/admin/login/", [("username", username), ("password", password), ("next", "/admin/")])
        if "/login" in page.url:
            raise PageFailed(f"The admin does not let {username!r} in.")

    def _token(self) -> str:
        tokens = [each.value or "" for each in self._cookies if each.name == "csrftoken"]
        if not tokens:
            raise PageFailed("No page with a form was visited yet: there is no CSRF cookie.")
        return tokens[0]

    def _open(self, request: Request) -> Page:
        try:
            with self._opener.open(request, timeout=30) as answer:
                return Page(answer.url, answer.read().decode())
        except HTTPError as error:
            text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", error.read().decode(errors="replace")))[:300]
            raise PageFailed(f"{request.full_url} answered {error.code}: {text.strip()}") from None


class _FormParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self._select = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append(Form(action=given.get("action", "")))
        elif not self.forms:
            return
        elif tag == "input":
            self._input(given)
        elif tag == "select":
            self._select = given.get("name", "")
        elif tag == "option" and self._select:
            self.forms[-1].choices.setdefault(self._select, []).append(given.get("value", ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "select":
            self._select = ""

    def _input(self, given: dict[str, str]) -> None:
        name, kind = given.get("name", ""), given.get("type", "text")
        if not name or kind in ("submit", "button", "image"):
            return
        if kind in ("checkbox", "radio"):
            self.forms[-1].choices.setdefault(name, []).append(given.get("value", "on"))
            if "checked" not in given:
                return
        self.forms[-1].fields.append((name, given.get("value", "")))
