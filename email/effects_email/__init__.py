"""Templated e-mail: written in your own transaction, sent once, or known not to be."""

from typing import TYPE_CHECKING

from effects.extend import lazy

if TYPE_CHECKING:
    from effects_email.api import Preview, preview_email, send_email, send_templated_email, send_templated_emails
    from effects_email.async_api import send_email_async, send_templated_email_async, send_templated_emails_async
    from effects_email.errors import (
        AddressInvalid,
        AttachmentInvalid,
        EmailInvalid,
        EmailNotFound,
        RenderingFailed,
        SuppressionInvalid,
        TemplateError,
        TemplateNotFound,
        TokenInvalid,
    )
    from effects_email.events import ProviderEvent, events_of
    from effects_email.jobs.send import EmailSend
    from effects_email.message.address import parse_address
    from effects_email.message.attachments import File
    from effects_email.message.invite import Invite
    from effects_email.message.source import Address
    from effects_email.personal.export import Exported, export_address
    from effects_email.personal.forget import Forgotten, forget_address
    from effects_email.request import NewEmail, email_key
    from effects_email.settings import EmailSettings
    from effects_email.suppressions.suppression import (
        LogLine,
        Suppression,
        find_suppressions,
        list_suppressions,
        suppress,
        suppression_log,
        unsuppress,
    )
    from effects_email.templates.markdown import escape_markdown
    from effects_email.unsubscribe import unsubscribe_link
    from effects_email.writing import EmailReceipt
else:
    __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "effects_email.api": "Preview, preview_email, send_email, send_templated_email, send_templated_emails",
            "effects_email.async_api": "send_email_async, send_templated_email_async, send_templated_emails_async",
            "effects_email.errors": (
                "AddressInvalid, AttachmentInvalid, EmailInvalid, EmailNotFound, RenderingFailed, "
                "SuppressionInvalid, TemplateError, TemplateNotFound, TokenInvalid"
            ),
            "effects_email.events": "ProviderEvent, events_of",
            "effects_email.jobs.send": "EmailSend",
            "effects_email.message.address": "parse_address",
            "effects_email.message.attachments": "File",
            "effects_email.message.invite": "Invite",
            "effects_email.message.source": "Address",
            "effects_email.personal.export": "Exported, export_address",
            "effects_email.personal.forget": "Forgotten, forget_address",
            "effects_email.request": "NewEmail, email_key",
            "effects_email.settings": "EmailSettings",
            "effects_email.suppressions.suppression": (
                "LogLine, Suppression, find_suppressions, list_suppressions, suppress, suppression_log, unsuppress"
            ),
            "effects_email.templates.markdown": "escape_markdown",
            "effects_email.unsubscribe": "unsubscribe_link",
            "effects_email.writing": "EmailReceipt",
        },
    )

__all__ = [
    "Address",
    "AddressInvalid",
    "AttachmentInvalid",
    "EmailInvalid",
    "EmailNotFound",
    "EmailReceipt",
    "EmailSend",
    "EmailSettings",
    "Exported",
    "File",
    "Forgotten",
    "Invite",
    "LogLine",
    "NewEmail",
    "Preview",
    "ProviderEvent",
    "RenderingFailed",
    "Suppression",
    "SuppressionInvalid",
    "TemplateError",
    "TemplateNotFound",
    "TokenInvalid",
    "email_key",
    "escape_markdown",
    "events_of",
    "export_address",
    "find_suppressions",
    "forget_address",
    "list_suppressions",
    "parse_address",
    "preview_email",
    "send_email",
    "send_email_async",
    "send_templated_email",
    "send_templated_email_async",
    "send_templated_emails",
    "send_templated_emails_async",
    "suppress",
    "suppression_log",
    "unsubscribe_link",
    "unsuppress",
]
