"""What Django makes of `effects.contrib.django` in INSTALLED_APPS."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from effects.app.default import set_default
from effects.contrib.django.project import ALIAS, ProjectEffects, follow, make_app, task_backends
from effects.errors import SchemaMismatch


class EffectsConfig(AppConfig):
    """Makes the project's Effects, which is the process's default, and then imports each app's `jobs.py`."""

    name = "effects.contrib.django"
    label = "effects"
    verbose_name = "effects"

    app: ProjectEffects | None = None
    alias = ALIAS

    def ready(self) -> None:
        """
        Raises:
            ConfigurationError: a setting, a report or a job type is wrong; names it.
        """
        self.app = make_app()
        self.alias = self.app.alias
        set_default(self.app)
        connection_created.connect(self._follow, dispatch_uid="effects")
        post_migrate.connect(self._register_schedules, sender=self, dispatch_uid="effects")
        if task_backends():
            from effects.contrib.django.tasks import register  # noqa: PLC0415 - Django may be without them

            register(self.app)
        autodiscover_modules("jobs")

    def _follow(self, connection: Any, **_: Any) -> None:
        """Go to the database that Django goes to: the test runner changes its name.

        It connects to none before it drops one, which it could not while our pool holds a connection to it.
        """
        if self.app is None:
            return
        if connection.alias == self.alias:
            follow(self.app, connection)
        elif connection.alias == NO_DB_ALIAS:
            for engine in self.app.store.engines:
                engine.dispose()

    def _register_schedules(self, using: str, **_: Any) -> None:
        """As `effects init` does; schedules that the code no longer has are stopped."""
        app = self.app
        if using != self.alias or app is None:
            return
        from effects.store import schedules as stored_schedules  # noqa: PLC0415
        from effects.store.db import revisions  # noqa: PLC0415 - only where Django migrates

        try:
            revisions.check(app.store)
        except SchemaMismatch:  # another app was migrated, or back to a time before the tables
            return
        stored_schedules.register(app.store, list(app.schedules.values()), retire_types=app.job_types.names())
