"""Where the shop answers."""

from django.urls import path

from orders.views import pay

urlpatterns = [path("pay", pay)]
