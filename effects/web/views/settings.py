"""What a person sets for this browser: the theme."""

from __future__ import annotations

from effects.web.exchange import PageAnswer
from effects.web.views.notices import notice
from effects.web.visit import Visit


def settings(visit: Visit) -> PageAnswer:
    if not visit.request.is_unsafe:
        return visit.page("settings.html", notice=notice(visit))
    answer = visit.redirect("settings", did="settings")
    return PageAnswer(answer.status, headers=(*answer.headers, visit.theme_cookie(visit.form.get("theme", ""))))
