"""Whose endpoints and events a call may touch."""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal, TypeAlias

from effects.extend.arguments import printable, require
from effects_webhooks.errors import EndpointInvalid


class AnyTenant(Enum):
    """The marker for a call on behalf of the operator, who may touch every tenant's rows."""

    ANY = "any"

    def __repr__(self) -> str:
        return "ANY_TENANT"


ANY_TENANT: Final = AnyTenant.ANY
Tenant: TypeAlias = str | Literal[AnyTenant.ANY] | None  # None: the rows that belong to no tenant


def check_tenant(tenant: str) -> str:
    """A tenant's name.

    Raises:
        EndpointInvalid: it is empty, too long or not printable. An empty one is most often a missing one, and must
            not stand for the rows without a tenant.
    """
    require("tenant", tenant, printable(), EndpointInvalid)
    return tenant


def tenant_filter(tenant: Tenant) -> str | None:
    """The tenant as the statements take it: None for any, "" for rows without one.

    Raises:
        EndpointInvalid: as `check_tenant`.
    """
    if tenant is ANY_TENANT:
        return None
    return "" if tenant is None else check_tenant(tenant)
