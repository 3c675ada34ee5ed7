"""What e-mail keeps of one Effects: settings, compiled templates, limit keys, open transports."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from effects import ConfigurationError, Effects
from effects.extend import lazy
from effects_email.dkim.entries import parse_entries
from effects_email.routing import LimitKeys
from effects_email.settings import EmailSettings
from effects_email.transport.registry import Transports

if TYPE_CHECKING:
    from effects_email.dkim import keys as dkim_keys
    from effects_email.dkim import signing
    from effects_email.templates import folder as template_folder
    from effects_email.templates import rendering
else:
    dkim_keys = lazy.module("effects_email.dkim.keys")
    signing = lazy.module("effects_email.dkim.signing")
    template_folder = lazy.module("effects_email.templates.folder")
    rendering = lazy.module("effects_email.templates.rendering")


class EmailState:
    """Of one Effects; made once, when first needed."""

    def __init__(self, app: Effects) -> None:
        self.settings: EmailSettings = app.packages["email"]
        self.limit_keys = LimitKeys(app)
        self.transports = Transports(self.settings.transport_urls())

    @cached_property
    def signer(self) -> signing.DkimSigner:
        """Signs with the keys of EFFECTS_DKIM_KEYS, whose files are read now.

        Raises:
            ConfigurationError: names the key that cannot be used.
        """
        return signing.DkimSigner(dkim_keys.load_keys(parse_entries(self.settings.dkim_keys)))

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
