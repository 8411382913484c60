"""The admin, and nothing else: what the tests ask for over HTTP."""

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
