"""What e-mail keeps of one Effects: settings, compiled templates, limit keys, open transports."""

from __future__ import annotations

from functools import cached_property

from effects import ConfigurationError, Effects
from effects_email.routing import LimitKeys
from effects_email.settings import EmailSettings
from effects_email.templates.folder import TemplateFolder
from effects_email.templates.rendering import Renderer
from effects_email.transport.registry import Transports


class EmailState:
    """Of one Effects; made once, when first needed."""

    def __init__(self, app: Effects) -> None:
        self.settings: EmailSettings = app.packages["email"]
        self.renderer = Renderer()
        self.limit_keys = LimitKeys(app)
        self.transports = Transports(self.settings.transport_urls())

    @cached_property
    def folder(self) -> TemplateFolder:
        """
        Raises:
            ConfigurationError: no folder of templates is set, or it is not there.
        """
        if self.settings.templates is None:
            raise ConfigurationError(
                "EFFECTS_EMAIL_TEMPLATES is not set; give the folder of the templates, or Effects(templates=…)"
            )
        return TemplateFolder(self.settings.templates)


def state_of(app: Effects) -> EmailState:
    """The state of e-mail in this Effects."""
    return app.state(EmailState)
