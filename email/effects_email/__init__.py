"""Templated e-mail: written in your own transaction, sent once, or known not to be."""

from effects_email.address import address
from effects_email.api import EmailReceipt, Preview, preview_email, send_templated_email, send_templated_emails
from effects_email.attachments import File
from effects_email.draft import NewEmail
from effects_email.errors import (
    AddressInvalid,
    AttachmentInvalid,
    EmailInvalid,
    EmailNotFound,
    RenderingFailed,
    TemplateError,
    TemplateNotFound,
)
from effects_email.job import EmailSend
from effects_email.parts import Address
from effects_email.settings import EmailSettings

__all__ = [
    "Address",
    "AddressInvalid",
    "AttachmentInvalid",
    "EmailInvalid",
    "EmailNotFound",
    "EmailReceipt",
    "EmailSend",
    "EmailSettings",
    "File",
    "NewEmail",
    "Preview",
    "RenderingFailed",
    "TemplateError",
    "TemplateNotFound",
    "address",
    "preview_email",
    "send_templated_email",
    "send_templated_emails",
]
