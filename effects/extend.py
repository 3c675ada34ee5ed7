"""The API for packages: all that a package may import besides the public names of `effects`.

The built-in packages use nothing else. Modules and names that are not here may change without notice.

Names without a docstring of their own:

    ANY_TIME            a `Window` without bounds
    AnyAsyncSession     an AsyncSession, a scoped one or an AsyncConnection, as the awaitable calls take it
    AnySession          what the calls take as `session=`: of SQLAlchemy, of a driver, of Django
    AsgiApp, Receive, Scope, Send   the ASGI 3.0 callables
    DAY_SECONDS         seconds of a day
    FOLDER              the prefix of the objects that `Storage.check` writes; an orphan search leaves them alone
    HEADER_PREFIX       the prefix of the three Standard Webhooks headers
    HIDDEN              what stands in place of a redacted value
    IGNORE              the action's name when a dead letter is resolved without a repeat
    Identity, Json      column types: an ascending id, and JSON
    LEDGER_STATES       the states of an effect
    ModulesNamed        a function from the name of a module to the modules of that name in a project's apps
    NO_DIGEST           the digest of a holder that is another one whatever its content
    ObjectData          what becomes a JSON object: a mapping, a dataclass, a msgspec struct or a pydantic model
    Private             which private addresses are open: all (True), none (False), or a tuple of networks
    ON_UNKNOWN, OnUnknown   the policies for an unknown outcome
    Resolver            a function from host and port to the host's addresses
    SECRET_PREFIX       the prefix of a signing secret
    Statement           a function from `Sql` to the text of a statement
    TOLERANCE_SECONDS   how far a signature's timestamp may be from now
    UNSAFE              pattern of the characters that no terminal or header may get
    VERSION             the version of this release of effects
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from effects.process import lazy

if TYPE_CHECKING:
    from effects import arguments, web_apps
    from effects.api import insert_intended, insert_one_intended, insert_reserved, reserve_jobs
    from effects.arguments import aware, build_each, check_arguments, each_of, optional, printable, require, shown
    from effects.crashpoints import declare, point
    from effects.default_app import app_of
    from effects.errors import SealInvalid, SecretInvalid, SignatureInvalid, code_of
    from effects.exit_codes import ExitCode
    from effects.guarded.addresses import AddressRefused, Private, host_allowed, is_web_port, private_networks
    from effects.guarded.network import GuardedNetwork
    from effects.http.client import verifying_context
    from effects.http.exchange import Exchange
    from effects.http.idle import IdleTotal
    from effects.http.loop_client import LoopHttpClient
    from effects.http.loop_stream import LoopStream, connect_on_loop
    from effects.http.network import check_network
    from effects.http.resolving import Resolver, ResolverThreads, is_address, system_resolver
    from effects.http.stream import clip
    from effects.idempotence import NO_DIGEST, IdempotentWriter, KeyHolder, write_once
    from effects.limits import Breaker, Rate
    from effects.logs import RateLimitedLogger, error_places, error_reason
    from effects.model.advice import Action, Explanation, Instead
    from effects.model.job_type import routing_of
    from effects.model.ledger import LEDGER_STATES, LedgerRow, fold_sql
    from effects.model.settlement import Execution, Settlement
    from effects.moments import moment, moment_or_none, phases_ms
    from effects.packages import ModulesNamed, PackageSettings
    from effects.plain_values import ObjectData, require_json, to_plain
    from effects.process.long_calls import long_call
    from effects.process.private_files import create_private
    from effects.retry import DAY_SECONDS, ON_UNKNOWN, OnUnknown
    from effects.secrets import signing
    from effects.secrets.sealing import SealedColumn, seal_payload
    from effects.secrets.signing import (
        HEADER_PREFIX,
        SECRET_PREFIX,
        TOLERANCE_SECONDS,
        decode_secret,
        generate_secret,
        parse_secret,
        sign,
        verify,
        verify_with,
    )
    from effects.sessions.asynchronous import AnyAsyncSession, in_async
    from effects.sessions.joining import AnySession, commits_alone
    from effects.storage.base import Storage, Writer
    from effects.storage.boot import boot_id
    from effects.storage.disposition import attachment
    from effects.storage.probe import FOLDER
    from effects.store.audit_log.notes import AuditAction, note
    from effects.store.db.engine import create_engine
    from effects.store.db.faults import may_pass
    from effects.store.db.old_rows import delete_page, old_rows
    from effects.store.db.sql import ANY_TIME, Sql, Window, and_each, columns_of, set_filters
    from effects.store.db.store import Statement, Store, as_json
    from effects.store.limits.holds import read_worker_queues
    from effects.store.limits.rows import ensure as ensure_limit
    from effects.store.limits.rows import unblock as unblock_limit
    from effects.store.migrations.online import create_index_online
    from effects.store.operator.actions import record_action
    from effects.store.operator.dead_letters import closed as is_resolved
    from effects.store.operator.requeue import Requeued, newest_job, requeue
    from effects.store.operator.resolve import resolve as resolve_unknown
    from effects.store.queue.settle import record_existing
    from effects.store.queue.table_ledger import TableLedger
    from effects.store.queue.unresolved import IGNORE
    from effects.store.schedules.definitions import ensure as ensure_schedule
    from effects.store.schedules.definitions import retire as retire_schedule
    from effects.store.schema.checks import check_json
    from effects.store.schema.columns import DatabaseNow, Identity, Json, UtcTime, ledger_columns, now_column
    from effects.text.database_error import database_condition, is_wrong_statement, primary_message
    from effects.text.digits import whole_number
    from effects.text.nearest import nearest
    from effects.text.placeholders import fill_placeholders, why_unfilled
    from effects.text.redact import HIDDEN, redact, repr_without
    from effects.text.scrub import clean_text
    from effects.text.unfit import why_unfit
    from effects.text.unsafe import UNSAFE, escape_unprintable, is_printable, without_unsafe
    from effects.text.wording import described
    from effects.version import VERSION
    from effects.walk import Page, walk
    from effects.web_apps import AsgiApp, Receive, Scope, Send, content_length, lifespan, send_pieces
else:
    __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "effects": "arguments, web_apps",
            "effects.api": "insert_intended, insert_one_intended, insert_reserved, reserve_jobs",
            "effects.arguments": "aware, build_each, check_arguments, each_of, optional, printable, require, shown",
            "effects.crashpoints": "declare, point",
            "effects.default_app": "app_of",
            "effects.errors": "SealInvalid, SecretInvalid, SignatureInvalid, code_of",
            "effects.exit_codes": "ExitCode",
            "effects.guarded.addresses": "AddressRefused, Private, host_allowed, is_web_port, private_networks",
            "effects.guarded.network": "GuardedNetwork",
            "effects.http.client": "verifying_context",
            "effects.http.exchange": "Exchange",
            "effects.http.idle": "IdleTotal",
            "effects.http.loop_client": "LoopHttpClient",
            "effects.http.loop_stream": "LoopStream, connect_on_loop",
            "effects.http.network": "check_network",
            "effects.http.resolving": "Resolver, ResolverThreads, is_address, system_resolver",
            "effects.http.stream": "clip",
            "effects.idempotence": "NO_DIGEST, IdempotentWriter, KeyHolder, write_once",
            "effects.limits": "Breaker, Rate",
            "effects.logs": "RateLimitedLogger, error_places, error_reason",
            "effects.process.long_calls": "long_call",
            "effects.model.advice": "Action, Explanation, Instead",
            "effects.model.job_type": "routing_of",
            "effects.model.ledger": "LEDGER_STATES, LedgerRow, fold_sql",
            "effects.model.settlement": "Execution, Settlement",
            "effects.moments": "moment, moment_or_none, phases_ms",
            "effects.packages": "ModulesNamed, PackageSettings",
            "effects.plain_values": "ObjectData, require_json, to_plain",
            "effects.process.private_files": "create_private",
            "effects.retry": "DAY_SECONDS, ON_UNKNOWN, OnUnknown",
            "effects.secrets.sealing": "SealedColumn, seal_payload",
            "effects.sessions.asynchronous": "AnyAsyncSession, in_async",
            "effects.sessions.joining": "AnySession, commits_alone",
            "effects.secrets": "signing",
            "effects.secrets.signing": (
                "HEADER_PREFIX, SECRET_PREFIX, TOLERANCE_SECONDS, decode_secret, generate_secret, parse_secret, "
                "sign, verify, verify_with"
            ),
            "effects.storage.base": "Storage, Writer",
            "effects.storage.boot": "boot_id",
            "effects.store.limits.holds": "read_worker_queues",
            "effects.storage.disposition": "attachment",
            "effects.storage.probe": "FOLDER",
            "effects.store.audit_log.notes": "AuditAction, note",
            "effects.store.db.engine": "create_engine",
            "effects.store.db.faults": "may_pass",
            "effects.store.db.old_rows": "delete_page, old_rows",
            "effects.store.db.sql": "ANY_TIME, Sql, Window, and_each, columns_of, set_filters",
            "effects.store.db.store": "Statement, Store, as_json",
            "effects.store.limits.rows": "ensure as ensure_limit, unblock as unblock_limit",
            "effects.store.migrations.online": "create_index_online",
            "effects.store.operator.actions": "record_action",
            "effects.store.operator.dead_letters": "closed as is_resolved",
            "effects.store.operator.requeue": "Requeued, newest_job, requeue",
            "effects.store.operator.resolve": "resolve as resolve_unknown",
            "effects.store.queue.settle": "record_existing",
            "effects.store.queue.table_ledger": "TableLedger",
            "effects.store.queue.unresolved": "IGNORE",
            "effects.store.schedules.definitions": "ensure as ensure_schedule, retire as retire_schedule",
            "effects.store.schema.checks": "check_json",
            "effects.store.schema.columns": "DatabaseNow, Identity, Json, UtcTime, ledger_columns, now_column",
            "effects.text.database_error": "database_condition, is_wrong_statement, primary_message",
            "effects.text.digits": "whole_number",
            "effects.text.nearest": "nearest",
            "effects.text.placeholders": "fill_placeholders, why_unfilled",
            "effects.text.redact": "HIDDEN, redact, repr_without",
            "effects.text.scrub": "clean_text",
            "effects.text.unfit": "why_unfit",
            "effects.text.unsafe": "UNSAFE, escape_unprintable, is_printable, without_unsafe",
            "effects.text.wording": "described",
            "effects.version": "VERSION",
            "effects.walk": "Page, walk",
            "effects.web_apps": "AsgiApp, Receive, Scope, Send, content_length, lifespan, send_pieces",
        },
    )

__all__ = [
    "ANY_TIME",
    "DAY_SECONDS",
    "FOLDER",
    "HEADER_PREFIX",
    "HIDDEN",
    "IGNORE",
    "LEDGER_STATES",
    "NO_DIGEST",
    "ON_UNKNOWN",
    "SECRET_PREFIX",
    "TOLERANCE_SECONDS",
    "UNSAFE",
    "VERSION",
    "Action",
    "AddressRefused",
    "AnyAsyncSession",
    "AnySession",
    "AsgiApp",
    "AuditAction",
    "Breaker",
    "DatabaseNow",
    "Exchange",
    "Execution",
    "ExitCode",
    "Explanation",
    "GuardedNetwork",
    "IdempotentWriter",
    "Identity",
    "IdleTotal",
    "Instead",
    "Json",
    "KeyHolder",
    "LedgerRow",
    "LoopHttpClient",
    "LoopStream",
    "ModulesNamed",
    "ObjectData",
    "OnUnknown",
    "PackageSettings",
    "Page",
    "Private",
    "Rate",
    "RateLimitedLogger",
    "Receive",
    "Requeued",
    "Resolver",
    "ResolverThreads",
    "Scope",
    "SealInvalid",
    "SealedColumn",
    "SecretInvalid",
    "Send",
    "Settlement",
    "SignatureInvalid",
    "Sql",
    "Statement",
    "Storage",
    "Store",
    "TableLedger",
    "UtcTime",
    "Window",
    "Writer",
    "and_each",
    "app_of",
    "arguments",
    "as_json",
    "attachment",
    "aware",
    "boot_id",
    "build_each",
    "check_arguments",
    "check_json",
    "check_network",
    "clean_text",
    "clip",
    "code_of",
    "columns_of",
    "commits_alone",
    "connect_on_loop",
    "content_length",
    "create_engine",
    "create_index_online",
    "create_private",
    "database_condition",
    "declare",
    "decode_secret",
    "delete_page",
    "described",
    "each_of",
    "ensure_limit",
    "ensure_schedule",
    "error_places",
    "error_reason",
    "escape_unprintable",
    "fill_placeholders",
    "fold_sql",
    "generate_secret",
    "host_allowed",
    "in_async",
    "insert_intended",
    "insert_one_intended",
    "insert_reserved",
    "is_address",
    "is_printable",
    "is_resolved",
    "is_web_port",
    "is_wrong_statement",
    "lazy",
    "ledger_columns",
    "lifespan",
    "long_call",
    "may_pass",
    "moment",
    "moment_or_none",
    "nearest",
    "newest_job",
    "note",
    "now_column",
    "old_rows",
    "optional",
    "parse_secret",
    "phases_ms",
    "point",
    "primary_message",
    "printable",
    "private_networks",
    "read_worker_queues",
    "record_action",
    "record_existing",
    "redact",
    "repr_without",
    "requeue",
    "require",
    "require_json",
    "reserve_jobs",
    "resolve_unknown",
    "retire_schedule",
    "routing_of",
    "seal_payload",
    "send_pieces",
    "set_filters",
    "shown",
    "sign",
    "signing",
    "system_resolver",
    "to_plain",
    "unblock_limit",
    "verify",
    "verify_with",
    "verifying_context",
    "walk",
    "web_apps",
    "whole_number",
    "why_unfilled",
    "why_unfit",
    "without_unsafe",
    "write_once",
]
