"""Mail settings from a URL, under the names that the installed Django knows them by."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

import django

BACKEND = "django.core.mail.backends.smtp.EmailBackend"
TIMEOUT = 10  # seconds: a dead mail server must not hold a thread of the worker for long


def mail_settings(url: str) -> dict[str, Any]:
    """MAILERS from Django 6.1 on, and the EMAIL_ settings that it replaces before.

    The URL is smtp://user:password@host:port; the schemes smtp+tls and smtp+ssl encrypt.
    """
    parts = urlsplit(url)
    options = {
        "host": parts.hostname or "localhost",
        "port": parts.port or 25,
        "username": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "use_tls": parts.scheme == "smtp+tls",
        "use_ssl": parts.scheme == "smtp+ssl",
        "timeout": TIMEOUT,
    }
    if django.VERSION >= (6, 1):
        return {"MAILERS": {"default": {"BACKEND": BACKEND, "OPTIONS": options}}}
    renamed = {"username": "host_user", "password": "host_password"}
    old = {f"EMAIL_{renamed.get(name, name)}".upper(): value for name, value in options.items()}
    return {"EMAIL_BACKEND": BACKEND, **old}
