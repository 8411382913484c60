from django.urls import path

from shop import views

app_name = "shop"
urlpatterns = [
    path("", views.catalogue, name="catalogue"),
    path("basket/", views.show_basket, name="basket"),
    path("basket/add/<int:pk>/", views.add_to_basket, name="add"),
    path("basket/remove/<int:pk>/", views.remove_from_basket, name="remove"),
    path("orders/", views.orders, name="orders"),
    path("orders/place/", views.checkout, name="checkout"),
    path("orders/<uuid:pk>/", views.order, name="order"),
    path("orders/<uuid:pk>/jobs/", views.order_jobs, name="order-jobs"),
    path("office/", views.office, name="office"),
    path("office/sync-accounts/", views.sync_accounts, name="sync-accounts"),
    path("office/rebuild-search/", views.rebuild_search, name="rebuild-search"),
    path("office/report-yesterday/", views.report_yesterday, name="report-yesterday"),
]
