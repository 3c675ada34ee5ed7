"""Notices that a report is ready or failed: checked with the request, kept with the run, enqueued when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from sqlalchemy import Connection, Row

from effects import ConfigurationError, EffectsError, EnqueueError, JobType, KeyUnavailable, enqueue
from effects.extend.arguments import DAY_SECONDS, arguments, optional, require, to_plain
from effects.extend.jobs import record_followers, routing_of
from effects.extend.process import own_logger
from effects.extend.secrets import SealedColumn, seal_payload
from effects.extend.sql import may_pass
from effects.extend.text import clean_text, error_places, error_reason, fill_placeholders, why_unfilled
from effects_reports.delivery.link_tokens import PURPOSE, LinkTerms, write_link
from effects_reports.errors import ReportInvalid
from effects_reports.routing import NOTIFY_TYPE
from effects_reports.tables.links import read_notices, write_notices
from effects_reports.tables.reports import Artifact, generated
from effects_reports.tables.runs import Run

if TYPE_CHECKING:
    from effects import Effects


_DEFAULT_PAYLOAD = {"run_id": "{run_id}", "report": "{report}", "state": "{state}", "error": "{error}"}
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
            storage, for a job type that attaches it. Default 0: it is always empty. At most 7,000,000. The notice of a
            larger file is a dead letter where there is no `link_to`.
        key: the job's idempotency key, filled in as the payload is; a second job of the same key and payload is not
            enqueued. Default none.
    """

    job_type: str
    payload: Mapping[str, Any] = msgspec.field(default_factory=lambda: dict(_DEFAULT_PAYLOAD))
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
    if notice.attach_bytes_max and "{attachment}" not in text:
        raise ReportInvalid("notify: attach_bytes_max is given, and no text of the payload has {attachment}")
    if notice.link_to is None:
        if "{link}" in text:
            raise ReportInvalid("notify: a text of the payload has {link}; give link_to, where download_app is mounted")
        return
    if urlsplit(notice.link_to).scheme not in ("https", "http"):
        raise ReportInvalid("notify: link_to is no address of the web; give https://…, where download_app is mounted")
    if "{link}" not in text:
        raise ReportInvalid("notify: link_to is given, and no text of the payload has {link}")
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
    types = [app.job_types.get(notice.job_type) for notice in notices if notice.job_type in app.job_types]
    return any(job_type.sensitive for job_type in types)


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


_log = own_logger("effects.reports")


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run has ended: what its notices tell."""

    run_id: str
    restart: int
    report: str
    key: str
    state: str
    error: str = ""
    artifact: Artifact | None = None

    @property
    def words(self) -> dict[str, str]:
        """What is filled in for the placeholders, but for the file itself."""
        words = dict.fromkeys(PLACEHOLDERS, "")
        words |= {"run_id": self.run_id, "restart": str(self.restart), "report": self.report, "key": self.key}
        words |= {"state": self.state, "error": self.error}
        if self.artifact is not None:
            words |= {"filename": self.artifact.filename, "rows": str(self.artifact.rows)}
            words |= {"bytes": str(self.artifact.bytes), "sha256": self.artifact.sha256}
        return words


def tell(
    app: Effects, connection: Connection, run: Run, state: str, artifact: Artifact | None, error: str, *, first: int = 0
) -> None:
    """Enqueue the notices of this state, each in a savepoint; of those that the run keeps, from the number `first` on.

    One that this process cannot enqueue must neither take the state change with it nor be lost: it lacks a job type or
    a key that another worker may have, or it runs code of the app's that raises. A job `report.notify` sends that one.
    """
    end = RunEnd(
        run_id=run.id, restart=run.round, report=run.report, key=run.key, state=state, error=clean_text(error),
        artifact=artifact,
    )  # fmt: skip
    try:
        notices = kept_notices(app, connection, run.id)
    except Exception as failure:
        note_followers(app, connection, run.id, [_leave_to_job(app, connection, end, None, failure)])
        return
    job_ids = []
    for number, notice in enumerate(notices):
        if number < first or state not in notice.on:
            continue
        try:
            with connection.begin_nested():
                job_ids.append(send(app, connection, end, notice))
        except Exception as failure:
            job_ids.append(_leave_to_job(app, connection, end, number, failure))
    note_followers(app, connection, run.id, job_ids)


def note_followers(app: Effects, connection: Connection, run_id: str, job_ids: Sequence[int]) -> None:
    """Note the jobs that followed from a run, with the job that its ledger names."""
    if job_ids and (run := generated(app.store, connection, [run_id]).get(run_id)) is not None:
        record_followers(app.store, connection, run.job_id, job_ids)


def _leave_to_job(app: Effects, connection: Connection, end: RunEnd, number: int | None, failure: Exception) -> int:
    """Let a job send one of the notices, or all of them (None), unless the whole transaction has to be repeated."""
    if may_pass(failure):
        raise failure
    facts = {"run": end.run_id, "number": number, "reason": error_reason(failure), "at": error_places(failure)}
    _log.error("report.notice_failed", extra=facts)
    payload = {"end": msgspec.to_builtins(end), "number": number}
    return enqueue(NOTIFY_TYPE, payload, session=connection, effects=app).job_id


def send(app: Effects, connection: Connection, end: RunEnd, notice: Notify) -> int:
    """Enqueue the job of a notice; its id."""
    words = end.words
    filled = fill_placeholders(notice.payload, words | _handover(app, connection, end, notice))
    key = None if notice.key is None else str(fill_placeholders(notice.key, words))
    return enqueue(notice.job_type, filled, key=key, session=connection, effects=app).job_id


def _handover(app: Effects, connection: Connection, end: RunEnd, notice: Notify) -> dict[str, str]:
    """The file itself if it is small enough, else a link to it; neither of a run that has failed.

    Raises:
        ReportInvalid: it is too large, and there is no link.
    """
    artifact = end.artifact
    if artifact is None or (notice.link_to is None and not notice.attach_bytes_max):
        return {}
    if artifact.bytes <= notice.attach_bytes_max:
        return {"attachment": artifact.artifact}
    if notice.link_to is None:
        raise ReportInvalid(
            f"notify: the file has {artifact.bytes:,} bytes, attach_bytes_max is {notice.attach_bytes_max:,}, and "
            "there is no link_to: `effects reports link` makes a link to hand over"
        )
    link = write_link(app, connection, end.run_id, artifact.sha256, notice.link_to, notice.link_terms)
    return {"link": link}
