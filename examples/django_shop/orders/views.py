"""Paying an order: the row and what follows from it, in one transaction."""

from decimal import Decimal
from typing import Any

from django.db import transaction
from django.http import HttpRequest, JsonResponse

from effects_email import send_templated_email
from effects_webhooks import WebhookEvent, deliver_webhook
from orders.jobs import pack_order
from orders.models import Order


@transaction.atomic
def pay(request: HttpRequest) -> JsonResponse:
    order = Order.objects.create(email=request.POST["email"], total=Decimal(request.POST["total"]))
    key = f"order:{order.id}:paid"
    context: dict[str, Any] = {"order": order.id, "total": order.total}
    send_templated_email("order_paid", to=order.email, context=context, event_id=key)
    deliver_webhook(WebhookEvent("order.paid", {"total": order.total, "at": order.paid_at}, key=key))
    pack_order.using(key=key).enqueue(order=order.id)
    if request.POST.get("card") == "declined":
        raise ValueError("the card was declined")  # and nothing is sent
    return JsonResponse({"order": order.id})
