"""What e-mail keeps of one Effects: settings, compiled templates, limit keys, open transports."""

from __future__ import annotations

from functools import cached_property

from effects import ConfigurationError, Effects
from effects.extend.process import lazy
from effects_email.dkim.entries import parse_entries
from effects_email.oauth.keeper import TokenKeeper
from effects_email.routing import LimitKeys
from effects_email.settings import EmailSettings
from effects_email.transport.registry import Transports

with lazy.modules(__name__):
    from effects_email.dkim import signing
    from effects_email.templates import folder as template_folder
    from effects_email.templates import rendering


class EmailState:
    """Of one Effects; made once, when first needed."""

    def __init__(self, app: Effects) -> None:
        self.settings: EmailSettings = app.packages["email"]
        self.limit_keys = LimitKeys(app)
        self.keeper = TokenKeeper(app)
        self.transports = Transports(self.settings.transport_urls(), self.keeper)

    @cached_property
    def signer(self) -> signing.DkimSigner:
        """Signs with the keys of EFFECTS_DKIM_KEYS, whose files are read now.

        Raises:
            ConfigurationError: names the key that cannot be used.
        """
        return signing.DkimSigner(signing.load_keys(parse_entries(self.settings.dkim_keys)))

    @cached_property
    def renderer(self) -> rendering.Renderer:
        """Renders, and keeps what it has compiled."""
        return rendering.Renderer()

    @cached_property
    def folder(self) -> template_folder.TemplateFolder:
        """
        Raises:
            ConfigurationError: no folder of templates is set, or it is not there.
        """
        if self.settings.templates is None:
            raise ConfigurationError(
                "EFFECTS_EMAIL_TEMPLATES is not set; give the folder of the templates, or Effects(templates=…)"
            )
        return template_folder.TemplateFolder(self.settings.templates)


def state_of(app: Effects) -> EmailState:
    """The state of e-mail in this Effects."""
    return app.state(EmailState)
