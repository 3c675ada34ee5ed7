"""What this package raises beside the core's errors; the tree in `effects.errors` has their parents.

EffectsError
├─ ConfigurationError
│   └─ TemplateError          the templates themselves cannot be used; names the template and the file
│       ├─ TemplateNotFound   no template has this name
│       └─ RenderingFailed    a variable is missing, or a filter failed; names the part and the line
├─ EmailNotFound              an operator named a message that is not there
├─ MailboxUnavailable         a mailbox of bounces that cannot be read by IMAP; nothing was changed by that
├─ LoginFailed                a token service does not give the tokens of a transport
├─ TokenInvalid               an unsubscribe token that is not ours, or was altered
├─ EnqueueError
│   ├─ EmailInvalid           a header, a name, a key or a context that no message may have
│   ├─ AddressInvalid         not a valid e-mail address; names the argument
│   ├─ AttachmentInvalid      a file that cannot be attached: missing, too large, oddly named
│   └─ SuppressionInvalid     a category, reason or end that no suppression may have
└─ DeliveryError, by its fate (see `effects.model.outcome`)
    ├─ Retry
    │   └─ AttachmentMissing  a file that was there at the call cannot be read now
    └─ Refused
        └─ ContentChanged     the bytes are not those of the call: an attachment, or an earlier try's

No text quotes an address, a value of the context or anything that was rendered.
"""

from __future__ import annotations

from dataclasses import dataclass

from effects import ConfigurationError, EffectsError, EnqueueError, Refused, Retry


class TemplateError(ConfigurationError):
    """The template cannot be used."""


class TemplateNotFound(TemplateError):
    """There is no such template."""


class RenderingFailed(TemplateError):
    """The template cannot be rendered with this context."""


class EmailNotFound(EffectsError):
    """There is no such message."""

    listed_by = "effects email list ADDRESS"


class MailboxUnavailable(EffectsError):
    """An IMAP server cannot be reached, refuses the login, or has no such mailbox."""


class LoginFailed(EffectsError):
    """A transport could not be logged in; nothing was stored."""


class TokenInvalid(EffectsError):
    """The unsubscribe token is not valid."""


class EmailInvalid(EnqueueError):
    """The message cannot be sent as given."""


class AddressInvalid(EnqueueError):
    """This is no e-mail address."""


class AttachmentInvalid(EnqueueError):
    """This file cannot be attached."""


class SuppressionInvalid(EnqueueError):
    """The suppression cannot be as given."""


@dataclass(eq=False)
class AttachmentMissing(Retry):
    """An attachment cannot be read."""

    code: str = "attachment_missing"


@dataclass(eq=False)
class ContentChanged(Refused):
    """The message would not have the bytes that it had."""

    code: str = "content_changed"
