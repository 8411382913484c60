from typing import Any

from django.core.management.base import BaseCommand

from shop import catalogue


class Command(BaseCommand):
    help = "Fill an empty shop with products, customers and accounts."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"{catalogue.load():,} products")
