"""Notices that a report is ready or failed: what they are, checked with the request and kept with the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from sqlalchemy import Connection, Row

from effects import ConfigurationError, EffectsError, EnqueueError, JobType, KeyUnavailable
from effects.extend import (
    DAY_SECONDS,
    SealedColumn,
    arguments,
    error_places,
    fill_placeholders,
    optional,
    require,
    routing_of,
    seal_payload,
    to_plain,
    why_unfilled,
)
from effects_reports.delivery.link_tokens import PURPOSE, LinkTerms
from effects_reports.errors import ReportInvalid
from effects_reports.tables.notices import read_notices, write_notices

if TYPE_CHECKING:
    from effects import Effects

DEFAULT_PAYLOAD = {"run_id": "{run_id}", "report": "{report}", "state": "{state}", "error": "{error}"}
PLACEHOLDERS = (
    "run_id", "restart", "report", "key", "state", "filename", "rows", "bytes", "sha256", "error", "link", "attachment",
)  # fmt: skip
NOTICE_LINK_SECONDS = 3 * DAY_SECONDS
ATTACH_BYTES_MAX = 7_000_000  # 10 MiB in base64, with room for the words
_SAMPLE = {
    **dict.fromkeys(("run_id", "report", "error"), "sample"), "key": "sample@example.com",  # it may be an address
    "filename": "sample.csv", "restart": "1", "rows": "1", "bytes": "1", "sha256": "0" * 64,
    "link": "https://sample.example/", "attachment": "",
}  # fmt: skip
_ATTACHED = arguments.whole(0, ATTACH_BYTES_MAX)


class Notify(msgspec.Struct, frozen=True, kw_only=True):
    """A job to enqueue when a run is ready, when it has failed, or both.

    Args:
        job_type: the name of any registered job type.
        payload: a mapping that converts to its payload. In its strings `{run_id}`, `{restart}`, `{report}`, `{key}`,
            `{state}` (`ready` or `failed`), `{filename}`, `{rows}`, `{bytes}`, `{sha256}`, `{error}`, `{link}` and
            `{attachment}` are filled in; another name in braces is refused. What a failed run has not is empty. Fields
            that the type declares sensitive are sealed in the run's row.
        on: `ready` and `failed` (default), or one of them.
        link_to: where `download_app` is mounted. `{link}` is then a link to the file, made when the run is ready; a
            payload that holds it is as secret as the file. Empty where the file is attached.
        link_seconds: how long the link is good. Default 3 days, at most 7.
        link_uses: for how many downloads. Default any number.
        link_principal: for whom alone, as for `download_url`. Default whoever has it.
        attach_bytes_max: of a file that has at most so many bytes `{attachment}` is the name of its object in the
            storage, for a job type that attaches it. Default 0: it is always empty. At most 7,000,000.
        key: the job's idempotency key, filled in as the payload is; a second job of the same key and payload is not
            enqueued. Default none.
    """

    job_type: str
    payload: Mapping[str, Any] = msgspec.field(default_factory=lambda: dict(DEFAULT_PAYLOAD))
    on: Sequence[str] = ("ready", "failed")
    link_to: str | None = None
    link_seconds: float = NOTICE_LINK_SECONDS
    link_uses: int | None = None
    link_principal: str | None = None
    attach_bytes_max: int = 0
    key: str | None = None

    @property
    def link_terms(self) -> LinkTerms:
        return LinkTerms(seconds=self.link_seconds, uses=self.link_uses, principal=self.link_principal)


def check_notices(app: Effects, notices: Sequence[Notify], **words: str) -> None:
    """Refuse a notice whose job could not be enqueued.

    Args:
        words: what placeholders will become, as far as it is settled; for the others there are samples.

    Raises:
        ReportInvalid: a job type is not registered, or neither it nor its `route` takes the payload.
        KeyUnavailable: it has sensitive fields, and EFFECTS_KEYS is not set.
    """
    for notice in notices:
        if not notice.on or any(state not in ("ready", "failed") for state in notice.on):
            raise ReportInvalid(f"notify: on is {list(notice.on)}; give ready, failed or both")
        _check_handover(app, notice)
        if notice.key is not None and (why := why_unfilled(notice.key, PLACEHOLDERS)) is not None:
            raise ReportInvalid(f"notify: {why}")
        try:
            _check_payload(app, notice, {**_SAMPLE, **words})
        except KeyUnavailable:
            raise
        except (ConfigurationError, EnqueueError) as error:
            raise ReportInvalid(f"notify: {error}") from None


def _check_handover(app: Effects, notice: Notify) -> None:
    """Refuse a notice that gives no one the file."""
    require("notify: link_to", notice.link_to, optional(arguments.text), ReportInvalid)
    require("notify: attach_bytes_max", notice.attach_bytes_max, _ATTACHED, ReportInvalid)
    text = _plain_text(notice)
    if notice.link_to is None:
        if "{link}" in text or notice.attach_bytes_max:
            raise ReportInvalid("notify: give link_to, where download_app is mounted: files may be too large to attach")
        return
    if urlsplit(notice.link_to).scheme not in ("https", "http"):
        raise ReportInvalid("notify: link_to is no address of the web; give https://…, where download_app is mounted")
    if "{link}" not in text:
        raise ReportInvalid("notify: link_to is given, and no text of the payload has {link}")
    if notice.attach_bytes_max and "{attachment}" not in text:
        raise ReportInvalid("notify: attach_bytes_max is given, and no text of the payload has {attachment}")
    notice.link_terms.check(where="notify: link_")
    app.keys.sign(b"", purpose=PURPOSE)


def _plain_text(notice: Notify) -> str:
    try:
        return msgspec.json.encode(notice.payload, enc_hook=to_plain).decode()
    except (TypeError, UnicodeEncodeError):
        raise ReportInvalid("notify: the payload is no JSON; give texts, numbers, lists and dicts") from None


def _check_payload(app: Effects, notice: Notify, words: Mapping[str, str]) -> None:
    job_type = app.job_types.get(notice.job_type)
    if (why := why_unfilled(notice.payload, (*PLACEHOLDERS, *job_type.placeholders))) is not None:
        raise ReportInvalid(f"{notice.job_type}: {why}")
    payloads = [job_type.checked(fill_placeholders(notice.payload, {**words, "state": state})) for state in notice.on]
    try:
        seal_payload(app.keys, job_type, payloads[0][1])
    except KeyUnavailable as error:
        fields = ", ".join(job_type.sensitive)
        raise KeyUnavailable(f"notify: {notice.job_type} has sensitive fields ({fields}): {error}") from None
    for payload, _ in payloads:
        job_type.check_declared(payload)
        _check_route(job_type, payload)


def _check_route(job_type: JobType[Any], payload: Any) -> None:
    """Call the app's code that `enqueue` will call, while the request can still be refused."""
    try:
        routing_of(job_type, payload)
    except EffectsError:
        raise
    except Exception as error:  # its text may quote a value
        raise ReportInvalid(
            f"{job_type.name}: its route raises {type(error).__name__} for this payload ({error_places(error)}): mend "
            "it, or give a payload that it takes"
        ) from None


def check_means(app: Effects, notice: Notify) -> None:
    """Refuse a notice that this process cannot enqueue, and another one may.

    Raises:
        UnknownJobType: its job type is not registered.
        KeyUnavailable: EFFECTS_KEYS lacks a key to seal its fields, or to sign its link.
    """
    if app.job_types.get(notice.job_type).sensitive:
        app.keys.seal(b"", **_context(""))
    if notice.link_to is not None:
        app.keys.sign(b"", purpose=PURPOSE)


def keep_notices(app: Effects, connection: Connection, run_id: str, notices: Sequence[Notify]) -> None:
    """Store notices with the run; sealed if one of their job types has sensitive fields."""
    if notices:
        _write(app, connection, run_id, notices, is_sealed=_are_sensitive(app, notices))


def add_notices(app: Effects, connection: Connection, run_id: str, notices: Sequence[Notify]) -> int:
    """Store those that the run does not have yet behind the others, and return the number of the first. Its row is
    locked.

    Raises:
        KeyUnavailable: as `lacks_notices`.
    """
    clear, sealed = read_notices(app.store, connection, run_id)
    kept = _opened(app, run_id, clear, sealed)
    lacking = _lacking(kept, notices)
    if lacking:
        is_sealed = sealed is not None or _are_sensitive(app, lacking)
        _write(app, connection, run_id, [*kept, *lacking], is_sealed=is_sealed)
    return len(kept)


def lacks_notices(app: Effects, connection: Connection, run_id: str, notices: Sequence[Notify]) -> bool:
    """Whether the run does not have all of these notices.

    Raises:
        KeyUnavailable: those that it has are sealed, and EFFECTS_KEYS lacks their key.
    """
    return bool(notices and _lacking(kept_notices(app, connection, run_id), notices))


def _lacking(kept: Sequence[Notify], notices: Sequence[Notify]) -> list[Notify]:
    """Those of these notices that are not among the kept ones, each once."""
    lacking = {_canonical(notice): notice for notice in notices}
    for notice in kept:
        lacking.pop(_canonical(notice), None)
    return list(lacking.values())


def _canonical(notice: Notify) -> bytes:
    """The same text for equal notices, whether they were stored or not."""
    stored = msgspec.json.decode(msgspec.json.encode(notice), type=Notify)
    return msgspec.json.encode(stored, order="sorted")


def _are_sensitive(app: Effects, notices: Sequence[Notify]) -> bool:
    return any(app.job_types.get(notice.job_type).sensitive for notice in notices)


def _write(app: Effects, connection: Connection, run_id: str, notices: Sequence[Notify], *, is_sealed: bool) -> None:
    text = msgspec.json.encode(notices)
    if is_sealed:
        write_notices(app.store, connection, run_id, None, app.keys.seal(text, **_context(run_id)))
    else:
        write_notices(app.store, connection, run_id, text.decode(), None)


def kept_notices(app: Effects, connection: Connection, run_id: str) -> list[Notify]:
    """The notices of a run.

    Raises:
        KeyUnavailable: they are sealed, and EFFECTS_KEYS lacks their key.
    """
    return _opened(app, run_id, *read_notices(app.store, connection, run_id))


def _opened(app: Effects, run_id: str, clear: str | None, sealed: bytes | None) -> list[Notify]:
    text = app.keys.open(sealed, **_context(run_id)) if sealed is not None else clear
    return msgspec.json.decode(text, type=list[Notify]) if text is not None else []


def sealed_columns() -> list[SealedColumn]:
    """What `effects keys` counts and rotates."""
    return [SealedColumn("report_runs", "notify_sealed", id_column="id", columns=(), context=_context_of)]


def _context_of(row: Row[Any]) -> dict[str, str]:
    return _context(row.id)


def _context(run_id: str) -> dict[str, str]:
    return {"table": "report_runs", "row": run_id, "field": "notify"}
