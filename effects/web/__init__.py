"""The dashboard: pages for operators, in an app of yours or by `effects web`. Needs the extra `effects-toolkit[web]`.

from effects.web import Person, dashboard

def guard(request):
    user = request.host["user"]
    return Person(user.email, role="operator") if user.is_staff else None

app.mount("/effects", dashboard(guard=guard))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from effects import lazy

if TYPE_CHECKING:
    from effects.web.application import Dashboard, dashboard
    from effects.web.exchange import PageRequest
    from effects.web.people import Person, Role
else:
    __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "effects.web.application": "Dashboard, dashboard",
            "effects.web.exchange": "PageRequest",
            "effects.web.people": "Person, Role",
        },
    )

__all__ = ["Dashboard", "PageRequest", "Person", "Role", "dashboard"]
