"""The webhook tables."""

from sqlalchemy import MetaData, Table


def build_tables(metadata: MetaData) -> dict[str, Table]:
    return {}
