"""The project's settings: SQLite here, PostgreSQL where SHOP_DATABASE names one."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(os.environ.get("SHOP_DATA", BASE_DIR))
SECRET_KEY = "of an example"
DEBUG = True
ROOT_URLCONF = "orders.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "effects.contrib.django", "orders"]

if os.environ.get("SHOP_DATABASE"):
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ["SHOP_DATABASE"],
            "HOST": os.environ.get("SHOP_HOST", ""),
            "USER": os.environ.get("SHOP_USER", ""),
        }
    }
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": DATA_DIR / "shop.sqlite3",
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},
            "TEST": {"NAME": DATA_DIR / "test_shop.sqlite3"},
        }
    }

EMAIL_BACKEND = "effects_email.django.EmailBackend"  # password resets and the like, in the same transactions
EFFECTS = {"email_from": "Shop <hello@shop.example>", "smtp_url": f"maildir:{DATA_DIR}/mail"}
