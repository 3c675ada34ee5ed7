"""The dashboard: pages for operators, in an app of yours or by `effects web`. Needs the extra `effects-toolkit[web]`.

from effects.web import Person, dashboard

def guard(request):
    user = request.host["user"]
    return Person(user.email, role="operator") if user.is_staff else None

app.mount("/effects", dashboard(guard=guard))

A package adds pages of its own by an entry point `effects.pages` (`Pages`); the other names are for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from effects.process import lazy

if TYPE_CHECKING:
    from effects.web.actions import ActionCall, ActionEnd, ActionField, PageAction
    from effects.web.application import Dashboard, dashboard
    from effects.web.exchange import PageAnswer, PageRequest
    from effects.web.navigation import NavigationEntry
    from effects.web.pages import Pages, StandingLine, StoryLink
    from effects.web.people import Person, Role
    from effects.web.routes import PageRoute
    from effects.web.views.notices import notice
    from effects.web.views.paging import PAGE_ROWS, before_of, choice_of, chosen_of, filters_of, page_of, text_of
    from effects.web.views.story import story_values
    from effects.web.visit import LIVE_SECONDS, Visit
else:
    __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "effects.web.actions": "ActionCall, ActionEnd, ActionField, PageAction",
            "effects.web.application": "Dashboard, dashboard",
            "effects.web.exchange": "PageAnswer, PageRequest",
            "effects.web.navigation": "NavigationEntry",
            "effects.web.pages": "Pages, StandingLine, StoryLink",
            "effects.web.people": "Person, Role",
            "effects.web.routes": "PageRoute",
            "effects.web.views.notices": "notice",
            "effects.web.views.paging": "PAGE_ROWS, before_of, choice_of, chosen_of, filters_of, page_of, text_of",
            "effects.web.views.story": "story_values",
            "effects.web.visit": "LIVE_SECONDS, Visit",
        },
    )

__all__ = [
    "LIVE_SECONDS",
    "PAGE_ROWS",
    "ActionCall",
    "ActionEnd",
    "ActionField",
    "Dashboard",
    "NavigationEntry",
    "PageAction",
    "PageAnswer",
    "PageRequest",
    "PageRoute",
    "Pages",
    "Person",
    "Role",
    "StandingLine",
    "StoryLink",
    "Visit",
    "before_of",
    "choice_of",
    "chosen_of",
    "dashboard",
    "filters_of",
    "notice",
    "page_of",
    "story_values",
    "text_of",
]
