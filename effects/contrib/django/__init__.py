"""effects in a Django project: `INSTALLED_APPS = [..., "effects.contrib.django"]`, and `EFFECTS = {…}` in the settings.

`app` is the project's Effects, once Django is set up. An app's `jobs.py` registers job types and schedules with it:

    from effects.contrib.django import app

    app.add(PackOrder())

Calls need not name it, and join Django's transaction by `session=connection` (`django.db.connection`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from effects.app.effects import Effects

    app: Effects

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from effects.contrib.django.project import project_app  # noqa: PLC0415 - Django reads this before its settings

    return project_app()
