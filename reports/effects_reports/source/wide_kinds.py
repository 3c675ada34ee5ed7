"""The types of PostgreSQL whose values Python cannot always hold; see `wide_values`."""

from __future__ import annotations

KINDS = {
    1082: "date",
    1083: "time",
    1266: "time with time zone",
    1114: "timestamp",
    1184: "timestamp with time zone",
    1186: "interval",
}


class ValueOutOfRange(Exception):
    """A mapped report met such a value.

    Attributes:
        oid: the type, a key of `KINDS`.
    """

    def __init__(self, oid: int) -> None:
        super().__init__(KINDS[oid])
        self.oid = oid
