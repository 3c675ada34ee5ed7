"""Django's settings, which a process has once: whichever test comes first sets them up for all."""

from __future__ import annotations

import django
from django.conf import settings


def set_up_django() -> None:
    """Configure Django without apps, unless something has; tests bring their databases themselves."""
    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
