"""The shop's settings with a second database, which has no effects."""

from shop.settings import *  # noqa: F403
from shop.settings import DATA_DIR, DATABASES

DATABASES["archive"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": DATA_DIR / "archive.sqlite3"}
