"""`effects doctor`: is everything as it should be, and what to do where it is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from effects.app import Effects
from effects.errors import ConfigurationError, DeliveryError, SchemaMismatch
from effects.keys import KeyRing
from effects.settings import DEFAULT_STORAGE_URL
from effects.store import revisions, schedules
from effects.store.doctor import Finding, Level, examine_server, examine_tables, examine_work
from effects.store.rotate import KeyCount, count_keys

_EXIT: dict[Level, int] = {"ok": 0, "warning": 1, "error": 2}


def examine(app: Effects) -> list[Finding]:
    """Run every check; where the tables are not ours, only those that need none.

    Reads statistics and catalogues, and once the tables with sealed values, jobs that succeeded left out.

    Raises:
        StoreUnavailable: the database is away.
    """
    return list(_findings(app))


def exit_code(findings: list[Finding]) -> int:
    """0 all well, 1 a warning, 2 an error."""
    return max((_EXIT[one.level] for one in findings), default=0)


def _findings(app: Effects) -> Iterator[Finding]:
    known = True
    try:
        revisions.check(app.store)
        yield Finding("schema", "ok", "the tables are those of this version")
    except SchemaMismatch as error:
        known = False
        yield Finding("schema", "error", str(error).partition(":")[0], "run `effects init`, or upgrade this host")
    yield from examine_server(app.store)
    if known:
        yield from examine_tables(app.store)
        yield from examine_work(app.store, app.settings.lease_seconds, app.job_types.names())
        yield _schedules(app)
        yield from _keys(app.keys, count_keys(app.store, quick=True))
    yield _storage(app)
    yield from _settings(app)


def _schedules(app: Effects) -> Finding:
    """What a deploy without `effects init` leaves behind."""
    pending = schedules.not_registered(app.store, list(app.schedules.values()))
    if not pending:
        return Finding("schedules", "ok", "the database has the schedules of this code")
    return Finding(
        "schedules",
        "warning",
        f"the database does not have them, or not as this code declares them: {', '.join(sorted(pending))}",
        "run `effects init` with this code, as every deploy should: until then no slot of theirs happens as declared",
    )


def _storage(app: Effects) -> Finding:
    """Used to find out, unless nothing was ever kept in the folder of the default."""
    url = app.settings.storage_url
    if url == DEFAULT_STORAGE_URL and not Path(url.removeprefix("file:")).exists():
        return Finding("storage", "ok", "no file is kept yet")
    try:
        app.storage.check()
    except (ConfigurationError, DeliveryError) as error:
        return Finding("storage", "error", str(error), "reports and attachments need it: see EFFECTS_STORAGE_URL")
    return Finding("storage", "ok", f"files can be written, read and deleted: {app.storage.url}")


def _keys(ring: KeyRing, counts: list[KeyCount]) -> Iterator[Finding]:
    by_key: dict[str, int] = {}
    for one in counts:
        by_key[one.key_id] = by_key.get(one.key_id, 0) + one.values
    missing = [f"{key_id} ({count:,})" for key_id, count in sorted(by_key.items()) if key_id not in ring.ids]
    old = [f"{key_id} ({by_key[key_id]:,})" for key_id in ring.ids[1:] if key_id in by_key]
    if missing:
        yield Finding(
            "keys",
            "error",
            f"values are sealed with keys that EFFECTS_KEYS does not hold: {', '.join(missing)}",
            "put those keys back behind the newest; without them the values are lost",
        )
    if old:
        yield Finding("keys", "warning", f"values are under old keys: {', '.join(old)}", "run `effects keys rotate`")
    if not ring.ids:
        yield Finding(
            "keys",
            "warning",
            "EFFECTS_KEYS is not set: no endpoint and no sensitive field can be stored",
            "run `effects keys generate` and set what it prints",
        )
    elif not ring.digests_are_keyed:
        yield Finding(
            "keys",
            "warning",
            "EFFECTS_KEYS has no key named digest: digests of payloads can be guessed at",
            "add digest=… of 32 random bytes in base64, and never change it",
        )
    elif not missing and not old:
        yield Finding("keys", "ok", f"everything sealed is under the newest key, {ring.ids[0]}")


def _settings(app: Effects) -> Iterator[Finding]:
    settings = app.settings
    risky = False
    if settings.allow_private_addresses:
        risky = True
        yield Finding(
            "settings",
            "warning",
            "EFFECTS_ALLOW_PRIVATE_ADDRESSES is on: webhooks may reach this network",
            "unset it, unless every endpoint is your own",
        )
    if settings.log_level == "DEBUG":
        risky = True
        yield Finding("settings", "warning", "EFFECTS_LOG_LEVEL is DEBUG", "INFO is enough, and a tenth of the volume")
    if not risky:
        yield Finding("settings", "ok", repr(settings))
