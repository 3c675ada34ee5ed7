"""The app's reports; found by their file's name."""

from typing import Any

import sqlalchemy as sa

from effects_reports import report

orders = sa.Table(
    "orders_order", sa.MetaData(), sa.Column("id", sa.BigInteger, primary_key=True), sa.Column("email", sa.Text)
)


@report("orders", key=("id",), columns={"id": "Order", "email": "E-mail"})
def orders_report(params: dict[str, Any]) -> sa.Select[Any]:
    return sa.select(orders)
