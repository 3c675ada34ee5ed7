"""The columns of messages: the ledger of `email.send`, and the recipients of group mail.

No address stands here in clear: a recipient is a digest (see `effects_email.mailbox`), the message itself is in
`sealed`, or in `content` where EFFECTS_KEYS has no key to seal it with.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, Integer, LargeBinary, MetaData, Table, Text, text

from effects.store.columns import UtcTime, ledger_columns, now_column

KEPT = "content IS NOT NULL OR sealed IS NOT NULL"  # for retention; its statements say the same


def sent_tables(metadata: MetaData) -> list[Table]:
    """What was written, to whom as a digest, and what became of it."""
    sent = Table(
        "effects_sent_emails",
        metadata,
        Column("key", Text, primary_key=True),
        Column("event_id", Text),  # what happened, where the caller said so
        Column("recipient", Text, nullable=False),  # of the first one
        Column("template", Text, nullable=False),
        Column("template_version", Text, nullable=False),
        Column("locale", Text),
        Column("category", Text),
        Column("transport", Text, nullable=False),
        Column("despite_suppression", Text),  # why suppressed recipients are written to
        Column("message_id", Text, nullable=False),
        Column("date", UtcTime, nullable=False),
        Column("content", LargeBinary),  # parts and context, compressed; for a time
        Column("sealed", LargeBinary),  # the same, sealed
        Column("bytes_sha256", Text),  # of the message, from its first release on
        Column("first_released_at", UtcTime),
        Column("tries", Integer, nullable=False, server_default=text("0")),
        Column("outcome", Text),  # the newest: accepted, suppressed, retry, refused_recipient, …
        Column("reply_code", Integer),
        Column("reply", Text),  # of the peer, without addresses
        Column("provider_id", Text),
        *ledger_columns(),
    )
    Index("ix_effects_sent_emails_recipient", sent.c.recipient, sent.c.created_at)
    Index("ix_effects_sent_emails_message_id", sent.c.message_id)
    Index(
        "ix_effects_sent_emails_event_id", sent.c.event_id,
        sqlite_where=text("event_id IS NOT NULL"), postgresql_where=text("event_id IS NOT NULL"),
    )  # fmt: skip
    Index(
        "ix_effects_sent_emails_kept", sent.c.job_id,
        sqlite_where=text(KEPT), postgresql_where=text(KEPT),
    )  # fmt: skip
    recipients = Table(
        "effects_email_recipients",
        metadata,
        Column("key", Text, ForeignKey(sent.c.key, ondelete="CASCADE"), primary_key=True),
        Column("number", Integer, primary_key=True, autoincrement=False),  # in the order To, Cc, Bcc
        Column("kind", Text, nullable=False),
        Column("recipient", Text, nullable=False),
        Column("outcome", Text),  # NULL until there is one
        Column("code", Text),
        now_column("updated_at"),
        CheckConstraint("kind IN ('to', 'cc', 'bcc')", name="ck_effects_email_recipients_kind"),
    )
    return [sent, recipients]
