"""A small record shop: what it sells, to whom, and what it owes them."""

from __future__ import annotations

import uuid
from decimal import Decimal
from zlib import crc32

from django.db import models
from django.db.models import F, Q
from django.urls import reverse


class Product(models.Model):
    """A track of the catalogue."""

    name = models.CharField(max_length=200)
    artist = models.CharField(max_length=200, blank=True)
    album = models.CharField(max_length=200, blank=True)
    genre = models.CharField(max_length=60, blank=True)
    composer = models.CharField(max_length=250, blank=True)
    seconds = models.PositiveIntegerField()
    price = models.DecimalField(max_digits=8, decimal_places=2)
    stock = models.PositiveIntegerField()

    class Meta:
        ordering = ["id"]
        constraints = [models.CheckConstraint(condition=Q(price__gt=0), name="shop_product_price")]

    def __str__(self) -> str:
        return f"{self.name}, {self.artist}" if self.artist else self.name

    @property
    def duration(self) -> str:
        return f"{self.seconds // 60}:{self.seconds % 60:02}"

    @property
    def hue(self) -> int:
        """One of twelve covers in the style sheet; an album's tracks share it."""
        return crc32(self.album.encode()) % 12


class Customer(models.Model):
    name = models.CharField(max_length=120)
    email = models.EmailField(unique=True)
    country = models.CharField(max_length=60, blank=True)

    def __str__(self) -> str:
        return self.name


class Account(models.Model):
    """A customer's loyalty account. The partner who runs the programme holds the truth; this is our copy."""

    customer = models.OneToOneField(Customer, on_delete=models.CASCADE)
    partner_id = models.CharField(max_length=20, unique=True)
    points = models.PositiveIntegerField(default=0)
    tier = models.CharField(max_length=20, blank=True)
    synced_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.partner_id


class Order(models.Model):
    """What a customer asked for. The invoice exists as soon as `process_order` has reserved the stock."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)  # not to be guessed from one's own
    customer = models.ForeignKey(Customer, on_delete=models.PROTECT, related_name="orders")
    placed_at = models.DateTimeField(auto_now_add=True, db_index=True)
    job_id = models.UUIDField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["-placed_at"]

    def __str__(self) -> str:
        return f"Order {str(self.id)[:8]}"

    def get_absolute_url(self) -> str:
        return reverse("shop:order", args=[self.pk])

    def total(self) -> Decimal:
        return self.lines.aggregate(total=models.Sum(F("quantity") * F("unit_price")))["total"] or Decimal(0)


class OrderLine(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="lines")
    product = models.ForeignKey(Product, on_delete=models.PROTECT)
    quantity = models.PositiveIntegerField()
    unit_price = models.DecimalField(max_digits=8, decimal_places=2)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["order", "product"], name="shop_line_product"),
            models.CheckConstraint(condition=Q(quantity__gt=0), name="shop_line_quantity"),
        ]

    def __str__(self) -> str:
        return f"{self.quantity} of {self.product}"

    def amount(self) -> Decimal:
        return self.quantity * self.unit_price


class InvoiceCounter(models.Model):
    """The number of the last invoice, in one row.

    Invoices must be numbered without gaps, which no database sequence promises: a number taken by a transaction that
    rolls back would be lost. The price is that invoices are written one after the other.
    """

    last_number = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.last_number}"


class Invoice(models.Model):
    order = models.OneToOneField(Order, on_delete=models.PROTECT)
    number = models.PositiveIntegerField(unique=True)
    total = models.DecimalField(max_digits=10, decimal_places=2)
    issued_at = models.DateTimeField(auto_now_add=True)
    mailed_at = models.DateTimeField(null=True, blank=True)
    mail_job_id = models.UUIDField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["number"]

    def __str__(self) -> str:
        return f"Invoice {self.number:06}"

    @property
    def message_id(self) -> str:
        """The same for every try, so that a mail sent twice can be told from two mails."""
        return f"<invoice-{self.pk}@shop.example>"


class SearchDocument(models.Model):
    """What the search knows of a product. Migration 0002 makes the full-text index, one for each kind of database."""

    product = models.OneToOneField(Product, on_delete=models.CASCADE, primary_key=True)
    title = models.CharField(max_length=200)
    body = models.TextField()

    def __str__(self) -> str:
        return self.title


class NightlyReport(models.Model):
    """Yesterday in numbers.

    `day` is not unique, on purpose: that the report is written once is what the lock and the key of the job are for,
    and a constraint here would hide that they work.
    """

    day = models.DateField(db_index=True)
    orders = models.PositiveIntegerField()
    revenue = models.DecimalField(max_digits=12, decimal_places=2)
    written_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-day", "-id"]

    def __str__(self) -> str:
        return f"Report of {self.day}"
