from django.contrib import admin

from shop.models import Account, Customer, Invoice, NightlyReport, Order, OrderLine, Product

admin.site.site_header = admin.site.site_title = "Chinook Records"


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["name", "artist", "album", "genre", "price", "stock"]
    list_filter = ["genre"]
    search_fields = ["name", "artist", "album"]


@admin.register(Customer)
class CustomerAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["name", "email", "country"]
    search_fields = ["name", "email"]


@admin.register(Account)
class AccountAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["partner_id", "customer", "points", "tier", "synced_at"]
    list_select_related = ["customer"]


class OrderLineInline(admin.TabularInline):  # type: ignore[type-arg]
    model = OrderLine
    extra = 0
    raw_id_fields = ["product"]


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["id", "customer", "placed_at"]
    list_select_related = ["customer"]
    date_hierarchy = "placed_at"
    inlines = [OrderLineInline]


@admin.register(Invoice)
class InvoiceAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["number", "order", "total", "issued_at", "mailed_at"]
    raw_id_fields = ["order"]


@admin.register(NightlyReport)
class NightlyReportAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["day", "orders", "revenue", "written_at"]
