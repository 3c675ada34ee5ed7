"""Templated e-mail: written in your own transaction, sent once, or known not to be."""

from effects.extend.process import lazy

with lazy.names(__name__):
    from effects_email.api import Preview as Preview
    from effects_email.api import preview_email as preview_email
    from effects_email.api import send_email as send_email
    from effects_email.api import send_templated_email as send_templated_email
    from effects_email.api import send_templated_emails as send_templated_emails
    from effects_email.async_api import send_email_async as send_email_async
    from effects_email.async_api import send_templated_email_async as send_templated_email_async
    from effects_email.async_api import send_templated_emails_async as send_templated_emails_async
    from effects_email.errors import AddressInvalid as AddressInvalid
    from effects_email.errors import AttachmentInvalid as AttachmentInvalid
    from effects_email.errors import EmailInvalid as EmailInvalid
    from effects_email.errors import EmailNotFound as EmailNotFound
    from effects_email.errors import RenderingFailed as RenderingFailed
    from effects_email.errors import SuppressionInvalid as SuppressionInvalid
    from effects_email.errors import TemplateError as TemplateError
    from effects_email.errors import TemplateNotFound as TemplateNotFound
    from effects_email.errors import TokenInvalid as TokenInvalid
    from effects_email.events import ProviderEvent as ProviderEvent
    from effects_email.events import events_of as events_of
    from effects_email.jobs.send import EmailSend as EmailSend
    from effects_email.message.address import parse_address as parse_address
    from effects_email.message.attachments import File as File
    from effects_email.message.invite import Invite as Invite
    from effects_email.message.source import Address as Address
    from effects_email.personal import Exported as Exported
    from effects_email.personal import Forgotten as Forgotten
    from effects_email.personal import export_address as export_address
    from effects_email.personal import forget_address as forget_address
    from effects_email.request import NewEmail as NewEmail
    from effects_email.request import email_key as email_key
    from effects_email.settings import EmailSettings as EmailSettings
    from effects_email.suppression import LogLine as LogLine
    from effects_email.suppression import Suppression as Suppression
    from effects_email.suppression import find_suppressions as find_suppressions
    from effects_email.suppression import list_suppressions as list_suppressions
    from effects_email.suppression import suppress as suppress
    from effects_email.suppression import suppression_log as suppression_log
    from effects_email.suppression import unsuppress as unsuppress
    from effects_email.templates.markdown import escape_markdown as escape_markdown
    from effects_email.unsubscribe import unsubscribe_link as unsubscribe_link
    from effects_email.writing import EmailReceipt as EmailReceipt
