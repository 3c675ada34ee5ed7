"""Where the shop with accounts answers."""

from django.contrib.auth import urls as of_django
from django.urls import include, path
from orders.urls import urlpatterns as of_orders

urlpatterns = [*of_orders, path("accounts/", include("allauth.urls")), path("auth/", include(of_django))]
