"""What e-mail keeps of one Effects: its settings, its templates compiled, its lanes. Made once, when first needed."""

from __future__ import annotations

import threading
from functools import cached_property
from weakref import WeakKeyDictionary

from effects.app import Effects
from effects.errors import ConfigurationError
from effects_email.lanes import Lanes
from effects_email.rendering import Renderer
from effects_email.settings import EmailSettings
from effects_email.templates import Folder


class Setup:
    """Of one Effects."""

    def __init__(self, app: Effects) -> None:
        self.settings: EmailSettings = app.packages["email"]
        self.renderer = Renderer()
        self.lanes = Lanes(app.store)

    @cached_property
    def folder(self) -> Folder:
        """
        Raises:
            ConfigurationError: no folder of templates is set, or it is not there.
        """
        if self.settings.templates is None:
            raise ConfigurationError(
                "EFFECTS_EMAIL_TEMPLATES is not set; give the folder of the templates, or Effects(templates=…)"
            )
        return Folder(self.settings.templates)


_setups: WeakKeyDictionary[Effects, Setup] = WeakKeyDictionary()
_lock = threading.Lock()


def setup_of(app: Effects) -> Setup:
    """The one of this Effects."""
    found = _setups.get(app)
    if found is None:
        with _lock:
            found = _setups.get(app) or Setup(app)
            _setups[app] = found
    return found
