"""The app's own job types; found by their file's name."""

from dataclasses import dataclass

from effects import Attempt, Schedule
from effects.contrib.django import app
from orders.models import Order


@dataclass
class Pack:
    order: int


@app.job("orders.pack", on_unknown="repeat")
def pack_order(pack: Pack, attempt: Attempt) -> None:
    Order.objects.filter(id=pack.order).update(packed=True)


app.add_schedules(
    Schedule("orders.nightly", "report.request", {"report": "orders", "key": "orders:{slot_date}"}, cron="0 2 * * *")
)
