"""The app's own job types; found by their file's name."""

from effects import Schedule
from effects.contrib.django import app
from orders.models import Order


@app.job("orders.pack", on_unknown="repeat")
def pack_order(order: int) -> None:
    Order.objects.filter(id=order).update(packed=True)


app.add_schedules(
    Schedule("orders.nightly", "report.request", {"report": "orders", "key": "orders:{slot_date}"}, cron="0 2 * * *")
)
