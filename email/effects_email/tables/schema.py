"""The columns. Times as in the core: `timestamptz` on PostgreSQL, milliseconds since 1970 on SQLite.

No address is stored in clear: a recipient is a digest (see `effects_email.message.address`). The message itself is in
`sealed`, or in `content` if EFFECTS_KEYS has no key to seal it with; the address of a suppression likewise.
"""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)  # fmt: skip

from effects.extend.rows import Identity, UtcTime, ledger_columns, now_column

KEPT = "content IS NOT NULL OR sealed IS NOT NULL"  # for retention; its statements say the same


def build_tables(metadata: MetaData) -> dict[str, Table]:
    """This package's tables in this MetaData, by their names without the prefix."""
    tables = [
        *_sent(metadata), *_suppression(metadata), _events(metadata), _signed_requests(metadata), _refusals(metadata),
        _tokens(metadata),
    ]  # fmt: skip
    return {table.name.removeprefix("effects_"): table for table in tables}


def _sent(metadata: MetaData) -> list[Table]:
    """Messages: content, recipients as digests, and state."""
    sent = Table(
        "effects_sent_emails",
        metadata,
        Column("key", Text, primary_key=True),
        # What a try changes comes first: see `ledger_columns`.
        Column("tries", Integer, nullable=False, server_default=text("0")),
        Column("outcome", Text),  # the newest: accepted, suppressed, retry, refused_recipient, …
        Column("reply_code", Integer),
        Column("reply", Text),  # of the peer, without addresses
        Column("provider_id", Text),
        Column("held_in", Text),  # the run of refusals in which a fault of ours last held it back
        Column("bytes_sha256", Text),  # of the message, from its first release on
        Column("first_released_at", UtcTime),
        Column("used_transport", Text),  # by which the newest try went; NULL before one
        *ledger_columns(),
        Column("event_id", Text),  # given by the caller, or NULL
        Column("recipient", Text, nullable=False),  # of the first one
        Column("template", Text, nullable=False),
        Column("template_version", Text, nullable=False),
        Column("locale", Text),
        Column("category", Text),
        Column("transport", Text, nullable=False),
        Column("despite_suppression", Text),  # why suppressed recipients are written to
        Column("message_id", Text, nullable=False),
        Column("date", UtcTime, nullable=False),
        # Last: SQLite reads through a long value to the columns behind it.
        Column("content", LargeBinary),  # source and context, compressed; for a time
        Column("sealed", LargeBinary),  # the same, sealed
        postgresql_with={"fillfactor": "60"},
    )
    Index("ix_effects_sent_emails_recipient", sent.c.recipient, sent.c.created_at, sent.c.job_id)
    Index("ix_effects_sent_emails_created_at", sent.c.created_at, sent.c.job_id)
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
    files = Table(
        "effects_email_files",
        metadata,
        Column("id", Text, primary_key=True),  # the hash of its bytes, and the message's key
        Column("key", Text, ForeignKey(sent.c.key, ondelete="CASCADE"), nullable=False, index=True),
        Column("content", LargeBinary),
        Column("sealed", LargeBinary),  # the same, sealed
    )
    return [sent, recipients, files]


def _suppression(metadata: MetaData) -> list[Table]:
    """Who is not written to, who decided so, and the failures that add up."""
    return [_suppressions(metadata), _log(metadata), _soft_failures(metadata), _reading(metadata)]


def _suppressions(metadata: MetaData) -> Table:
    suppressions = Table(
        "effects_email_suppressions",
        metadata,
        Column("id", Text, primary_key=True),
        Column("digest", Text, nullable=False),
        Column("scope", Text, nullable=False, server_default="all"),  # or a category
        Column("reason", Text, nullable=False),
        Column("source", Text, nullable=False),
        Column("address", Text),  # only where EFFECTS_KEYS has no key to seal with
        Column("sealed", LargeBinary),
        Column("until", UtcTime),  # NULL: forever
        Column("actor", Text, nullable=False),
        Column("why", Text),
        now_column("created_at"),
        now_column("updated_at"),
        CheckConstraint(
            "reason IN ('hard_bounce', 'complaint', 'unsubscribe', 'manual', 'soft_repeat')",
            name="ck_effects_email_suppressions_reason",
        ),
    )
    # One row a reason: a bounce that runs out does not take a complaint with it.
    Index(
        "ux_effects_email_suppressions_digest", suppressions.c.digest, suppressions.c.scope, suppressions.c.reason,
        unique=True,
    )  # fmt: skip
    Index(
        "ix_effects_email_suppressions_until", suppressions.c.until, sqlite_where=text("until IS NOT NULL"),
        postgresql_where=text("until IS NOT NULL"),
    )  # fmt: skip
    return suppressions


def _log(metadata: MetaData) -> Table:
    return Table(
        "effects_email_suppression_log",
        metadata,
        Column("id", Identity, primary_key=True, autoincrement=True),
        Column("digest", Text, nullable=False, index=True),
        Column("action", Text, nullable=False),
        Column("scope", Text),
        Column("reason", Text),
        Column("actor", Text, nullable=False),
        Column("why", Text),
        now_column("created_at"),
        sqlite_autoincrement=True,
    )


def _soft_failures(metadata: MetaData) -> Table:
    return Table(
        "effects_email_soft_failures",
        metadata,
        Column("digest", Text, primary_key=True),
        Column("day", Integer, primary_key=True, autoincrement=False, index=True),  # since 1970, UTC
        Column("failures", Integer, nullable=False, server_default=text("0")),
    )


def _reading(metadata: MetaData) -> Table:
    """Reports that are being read, or whose reading did not end."""
    return Table(
        "effects_email_reports_read",
        metadata,
        Column("digest", Text, primary_key=True),  # SHA-256 of the message; or the mailbox that cannot be opened
        Column("attempts", Integer, nullable=False, server_default=text("1")),
        Column("reason", Text),  # why the mailbox cannot be opened
        now_column("updated_at"),
    )


def _signed_requests(metadata: MetaData) -> Table:
    """Requests of a provider that signs a token but not the event: each token is taken for one body alone."""
    return Table(
        "effects_email_signed_requests",
        metadata,
        Column("id", Identity, primary_key=True, autoincrement=True),
        Column("token", Text, nullable=False, unique=True),  # SHA-256, as the body's
        Column("body", Text, nullable=False),
        now_column("created_at"),
    )


def _events(metadata: MetaData) -> Table:
    """One row an event, each once."""
    events = Table(
        "effects_email_events",
        metadata,
        Column("id", Identity, primary_key=True, autoincrement=True),
        Column("provider", Text, nullable=False),
        Column("provider_event_id", Text, nullable=False),  # the same on every repeat
        Column("kind", Text, nullable=False),
        Column("code", Text),  # the provider's own word
        Column("reference", Text),  # of the message, where it is one of ours
        Column("provider_id", Text),  # what the provider calls the message
        Column("recipient", Text),
        Column("at", UtcTime),  # by the provider's clock
        now_column("created_at"),
        sqlite_autoincrement=True,
    )
    Index("ux_effects_email_events_event", events.c.provider, events.c.provider_event_id, unique=True)
    Index(
        "ix_effects_email_events_reference", events.c.reference, sqlite_where=text("reference IS NOT NULL"),
        postgresql_where=text("reference IS NOT NULL"),
    )  # fmt: skip
    return events


def _refusals(metadata: MetaData) -> Table:
    """At most one row per transport; deleted when a message is accepted."""
    return Table(
        "effects_email_refusals",
        metadata,
        Column("transport", Text, primary_key=True),
        Column("run", Text, nullable=False),  # another one after every message that was taken
        Column("refusal", Text, nullable=False),  # the newest, without names and numbers; see `refusals.likeness`
        Column("code", Text, nullable=False),  # of the same, such as smtp_550_5.7.1
        Column("recipients", Text, nullable=False),  # affected recipients, each once, separated by spaces
        Column("messages", Integer, nullable=False),  # how many of those
        now_column("began_at"),  # of this refusal
        Column("overruled_at", UtcTime),  # since when it counts as the transport's fault alone
        now_column("updated_at"),
    )


def _tokens(metadata: MetaData) -> Table:
    """One row for each transport that logs in by OAuth; the tokens are sealed."""
    return Table(
        "effects_email_tokens",
        metadata,
        Column("transport", Text, primary_key=True),
        Column("client", Text, nullable=False),  # a digest of whose tokens they are
        Column("version", Integer, nullable=False),  # of the access token
        Column("expires_at", UtcTime),
        Column("renew_at", UtcTime),
        Column("leased_until", UtcTime),  # by who renews it, or after a failure
        Column("refused", Boolean, nullable=False, server_default=text("false")),  # by a mail server: to be renewed
        Column(
            "for_refused", Boolean, nullable=False, server_default=text("false")
        ),  # got for that, and not yet accepted
        Column("failure", Text),  # code of the newest renewal that failed, its kind, its words
        Column("failure_kind", Text),
        Column("failure_reason", Text),
        Column("access", LargeBinary),
        Column("refresh", LargeBinary),
        Column("previous", LargeBinary),  # the refresh token before, until this one has worked
    )
