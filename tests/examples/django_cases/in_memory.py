"""The shop's settings with the test database that Django makes for SQLite by default: in memory."""

from shop.settings import *  # noqa: F403
from shop.settings import DATABASES

DATABASES["default"].pop("TEST", None)
