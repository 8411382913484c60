"""The shop with all its servers: what `demo` and `serve` have in common."""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection

from demo.processes import PROJECT, Child, Crew
from services.smtp import Mailbox
from shop import catalogue

MANAGE = PROJECT / "manage.py"
SERVICES = PROJECT / "services"
ADMIN = "admin"
FAULTS = {"seed": 20, "busy": 0.2, "down": 0.15, "hang": 0.04, "fastest": 0.02, "slowest": 0.25}


@dataclass
class RunningShop:
    crew: Crew
    mailbox: Mailbox
    partner: Child
    web: Child
    env: dict[str, str]
    password: str

    def disturb_partner(self, **changes: object) -> None:
        """Make the partner as unreliable as partners are, or change how."""
        body = json.dumps({**FAULTS, **changes}).encode()
        with urlopen(Request(f"{self.partner.url}/control", data=body), timeout=10):
            pass

    def start_worker(self) -> Child:
        return self.crew.start("worker", MANAGE, "runworker", env=self.env)

    def start_command(self, name: str, *arguments: str) -> Child:
        return self.crew.start(name, MANAGE, name, *arguments, env=self.env)


@contextmanager
def running_shop(say: Callable[[str, str], None], *, port: int = 0) -> Iterator[RunningShop]:
    """Migrate, load the catalogue, and start the mail server, the partner and the web server, but no worker."""
    call_command("migrate", verbosity=0)
    say("database", _database())
    say("catalogue", f"{catalogue.load():,} tracks of the Chinook database")
    password = _superuser()
    with (
        tempfile.TemporaryDirectory(prefix="django-jobs-shop-", ignore_cleanup_errors=True) as name,
        Crew(Path(name)) as crew,
    ):
        connection.close()  # a child must not inherit it
        mailbox = Mailbox(Path(name) / "mailbox.sqlite3")
        smtp = crew.start("smtp", SERVICES / "smtp.py", mailbox.path, "--port", "0", has_port=True)
        partner = crew.start("partner", SERVICES / "partner.py", "--port", "0", has_port=True)
        env = {
            "EMAIL_URL": f"smtp://127.0.0.1:{smtp.port}",
            "SHOP_PARTNER_URL": partner.url,
            # So short that the demo can show a rescue; the defaults are ten times as long.
            "JOBS_LEASE": os.environ.get("JOBS_LEASE", "3"),
            "JOBS_HEARTBEAT": os.environ.get("JOBS_HEARTBEAT", "1"),
        }
        web = crew.start("web", SERVICES / "web.py", "--port", str(port), env=env, has_port=True)
        say("servers", f"web {web.port}, smtp {smtp.port}, partner {partner.port}")
        yield RunningShop(crew, mailbox, partner, web, env, password)


def _database() -> str:
    version = ".".join(str(each) for each in connection.get_database_version())
    settings = connection.settings_dict
    place = f"at {settings['HOST']}:{settings['PORT']}" if settings["HOST"] else f"in {settings['NAME']}"
    return f"{connection.display_name} {version} {place}"


def _superuser() -> str:
    """Let `admin` in with ADMIN_PASSWORD, or with a new password each time."""
    password = os.environ.get("ADMIN_PASSWORD") or secrets.token_urlsafe(9)
    user, _ = get_user_model().objects.get_or_create(username=ADMIN, defaults={"is_staff": True, "is_superuser": True})
    user.set_password(password)
    user.save()
    return password


def say(topic: str, text: str) -> None:
    """One line of progress."""
    sys.stdout.write(f"{topic:<10} {text}\n")
    sys.stdout.flush()
