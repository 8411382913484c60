"""`make serve`: the shop with all its servers and a worker, until Ctrl-C."""

from __future__ import annotations

import socket
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from demo.processes import ChildFailed
from demo.running import ADMIN, running_shop, say
from demo.trouble import make_trouble


class Command(BaseCommand):
    help = "Run the shop until Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=8000, help="of the web server; a free one if it is taken")
        parser.add_argument("--trouble", action="store_true", help="begin with a bad day, which leaves dead letters")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with running_shop(say, port=_free(options["port"])) as shop:
                shop.disturb_partner()
                shop.start_worker()
                say("shop", shop.web.url)
                say("admin", f"{shop.web.url}/admin/   user {ADMIN}, password {shop.password}")
                say("", "Ctrl-C stops all of it.")
                if options["trouble"]:
                    make_trouble(shop)
                    say("trouble", "dead letters come in, the last within half a minute")
                while True:
                    time.sleep(0.5)
                    shop.crew.check()
        except ChildFailed as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            say("\nstopped", "")


def _free(port: int) -> int:
    """This port, or 0 for any if somebody has it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return 0
    return port
