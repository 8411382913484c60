"""Users of every kind, logged in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from tests.admin.pages import Asker


@pytest.fixture
def staff(db: None) -> Callable[..., Client]:
    """Log in a staff user with these permissions of the app, and no others."""

    def log_in(*codenames: str, username: str = "sam") -> Client:
        user = User.objects.create_user(username, is_staff=True)
        found = Permission.objects.filter(content_type__app_label="django_jobs", codename__in=codenames)
        assert len(found) == len(codenames)
        user.user_permissions.set(found)
        client = Client()
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def root(db: None) -> Client:
    """A superuser."""
    client = Client()
    client.force_login(User.objects.create_superuser("root", "root@example.org"))
    return client


@pytest.fixture
def ask(root: Client) -> Asker:
    return Asker(root)
