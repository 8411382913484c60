"""`make demo`: the shop run for real, with a crash, deaths, repairs and replays, and a table of what came of it."""

from __future__ import annotations

import os
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from demo.browser import PageFailed
from demo.processes import ChildFailed
from demo.running import running_shop, say
from demo.story import DemoFailed, Story


class Command(BaseCommand):
    help = "Run the shop for real and check what came of it."

    def add_arguments(self, parser: CommandParser) -> None:
        orders = int(os.environ.get("DEMO_ORDERS", "200"))
        parser.add_argument("--orders", type=int, default=orders, help="how many orders to place (DEMO_ORDERS; 200)")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with running_shop(say) as shop:
                started = time.monotonic()
                is_right = Story(shop, orders=options["orders"]).run()
                say("time", f"{time.monotonic() - started:.0f} s after the set-up")
        except (ChildFailed, DemoFailed, PageFailed) as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("Stopped.", returncode=130) from None
        if not is_right:
            raise CommandError("The demo did not come out as it must.")
