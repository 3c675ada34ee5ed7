"""The dashboard: pages for operators, in an app of yours or by `effects web`. Needs the extra `effects-toolkit[web]`.

from effects.web import Person, dashboard

def guard(request):
    user = request.host["user"]
    return Person(user.email, role="operator") if user.is_staff else None

app.mount("/effects", dashboard(guard=guard))

A package adds pages of its own by an entry point `effects.pages` (`Pages`); the other names are for that.
"""

from __future__ import annotations

from effects.kit import lazy

with lazy.names(__name__):
    from effects.web.actions import ActionCall as ActionCall
    from effects.web.actions import ActionEnd as ActionEnd
    from effects.web.actions import ActionField as ActionField
    from effects.web.actions import PageAction as PageAction
    from effects.web.application import Dashboard as Dashboard
    from effects.web.application import dashboard as dashboard
    from effects.web.dev import keep_file as keep_file
    from effects.web.exchange import PageAnswer as PageAnswer
    from effects.web.exchange import PageRequest as PageRequest
    from effects.web.pages import Pages as Pages
    from effects.web.pages import Problem as Problem
    from effects.web.pages import StandingLine as StandingLine
    from effects.web.pages import StoryLink as StoryLink
    from effects.web.pages import notice as notice
    from effects.web.routes import NavigationEntry as NavigationEntry
    from effects.web.routes import PageRoute as PageRoute
    from effects.web.security import Person as Person
    from effects.web.security import Role as Role
    from effects.web.views.jobs import story_values as story_values
    from effects.web.views.paging import PAGE_ROWS as PAGE_ROWS
    from effects.web.views.paging import before_of as before_of
    from effects.web.views.paging import choice_of as choice_of
    from effects.web.views.paging import chosen_of as chosen_of
    from effects.web.views.paging import filters_of as filters_of
    from effects.web.views.paging import page_of as page_of
    from effects.web.views.paging import text_of as text_of
    from effects.web.visit import LIVE_SECONDS as LIVE_SECONDS
    from effects.web.visit import Visit as Visit
