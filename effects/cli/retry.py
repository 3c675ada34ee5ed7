"""`effects retry`, `effects cancel`, `effects resolve`: one verb each, whatever it is about.

A name acts at once, filters and what has many effects only with `--yes`: without it there is a preview.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import click

from effects.calls import control
from effects.cli.bulk import DONE, SHOWN, WILL, Part, Scope, act_on_parts, few, many_options, why_not
from effects.cli.context import Context, actor
from effects.cli.jobs import job_filter_options, tenant_limit_keys
from effects.cli.options import (
    code_option,
    key_option,
    option_group,
    override_option,
    queue_option,
    reason_option,
    status_option,
    tenant_option,
    text_option,
    type_option,
    window_options,
    word_option,
)
from effects.cli.results import CommandResult, command
from effects.cli.table import Table
from effects.errors import EnqueueError, JobNotFound, JobStateError
from effects.kit.exit_codes import ExitCode
from effects.model.job import ENDED, LIVE_SHOWN
from effects.model.ledger import LedgerRow
from effects.operate.evidence import job_evidence
from effects.operate.sentences import advice, wait_text
from effects.operate.tables import actions
from effects.operate.tables.bulk_selection import BulkAction, Operation, SelectedCause
from effects.operate.tables.dead_letters import DeadFilters
from effects.operate.tables.job_list import Filters
from effects.operate.tables.lookup import Named, find_named, read_job
from effects.store.db.sql import ANY_TIME
from effects.store.effects.requeue import read_standing
from effects.store.queue import cancellation

RESOLUTIONS = ("done", "retry", "give-up")
WAITING = ("queued", "retrying")

_CANCELLED = {
    "cancelled": "cancelled",
    "stopped": "was not released: it ends without its effect",
    "released": "is running and was released: asked to stop, its effect may happen, will not be retried",
}


_names_argument = click.argument("names", metavar="[KEY|ID]...", nargs=-1)
_limit_key_option = click.option("--limit-key", metavar="KEY", help="Limit key, such as webhook:ep_123.")


def _filter_options(*statuses: str) -> Callable[..., Any]:
    status = [status_option(statuses)] if statuses else []
    return option_group(
        type_option, *status, queue_option, key_option, code_option, text_option, word_option, _limit_key_option,
        tenant_option, window_options("ended (waiting ones: were created)"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What is to be acted on: these effects, or else what the filters select."""

    named: Sequence[Named]
    filters: dict[str, Any] = field(default_factory=dict)

    @property
    def is_group(self) -> bool:
        return any(name.is_group for name in self.named)


def _choose(context: Context, names: Sequence[str], scope: Scope, filters: dict[str, Any]) -> _Chosen:
    """Find what the names mean; an endpoint, or what else has a limit key, is a filter.

    Raises:
        click.UsageError: neither names nor filters, or both.
        JobNotFound, KeyAmbiguous: as `find_named`.
    """
    key, job_type = filters.pop("key", None), filters.get("job_type")
    filters["limit_keys"] = tenant_limit_keys(context, filters.pop("tenant"))
    is_filtered = scope.all_ or any(value not in (None, ANY_TIME) for value in filters.values())
    if not names and key is None:
        if not is_filtered:
            raise click.UsageError("give a KEY or an ID, or filters, or --all")
        return _Chosen((), filters)
    app = context.app
    with app.store.read() as connection:
        named = [find_named(app.store, connection, app.ledgers, name, job_type) for name in names]
        if key is not None:
            named.append(find_named(app.store, connection, app.ledgers, key, job_type, as_key=True))
    if len(named) == 1 and named[0].limit_keys and filters["limit_keys"] is None:
        return _Chosen((), {**filters, "limit_keys": named[0].limit_keys})
    if len(named) > 1 and any(name.limit_keys for name in named):
        raise click.UsageError("an endpoint, or another limit key, is given alone")
    beside = {name: value for name, value in filters.items() if name != "job_type"}
    if scope.all_ or scope.limit is not None or any(value not in (None, ANY_TIME) for value in beside.values()):
        raise click.UsageError("give names, or filters")
    return _Chosen(named)


# -- named effects ---------------------------------------------------------------------------------------------

# What was done to one effect: a document for scripts, and a line.
_Answer: TypeAlias = tuple[dict[str, Any], str]
_Act: TypeAlias = Callable[[LedgerRow, Named], _Answer]


def _act_on_named(chosen: _Chosen, scope: Scope, act: _Act, will: str, *, skips: Sequence[str] = ()) -> CommandResult:
    """Act on each effect; one that is named alone may refuse as an error.

    Args:
        skips: states of effects of a group that are left alone.
    """
    effects = [(effect, named) for named in chosen.named for effect in named.effects
               if not (named.is_group and effect.state in skips)]  # fmt: skip
    left_alone = sum(len(named.effects) for named in chosen.named) - len(effects)
    if scope.dry_run or (chosen.is_group and not scope.yes):
        return _named_preview(effects, will, left_alone)
    if len(effects) == 1 and not chosen.is_group:
        return CommandResult(*act(*effects[0]))
    documents, lines, refused = list[dict[str, Any]](), list[str](), list[str]()
    for effect, named in effects:
        try:
            document, line = act(effect, named)
        except (JobNotFound, JobStateError) as error:
            refused.append(str(error))
        else:
            documents.append(document)
            lines.append(line)
    text = "\n".join([*few(lines), *few([f"refused: {reason}" for reason in refused])]) or "nothing to do"
    exit_code = ExitCode.FINDINGS if refused else ExitCode.DONE
    return CommandResult({"done": documents, "refused": refused}, text, exit_code=exit_code)


def _named_preview(effects: Sequence[tuple[LedgerRow, Named]], will: str, left_alone: int) -> CommandResult:
    rows = [(effect.key or named.name, effect.state or None, effect.job_id) for effect, named in effects]
    title = f"the first {SHOWN}" if len(rows) > SHOWN else None
    others = f"; {left_alone:,} done are left alone" if left_alone else ""
    summary = f"{len(rows):,} to {will}{others}. Nothing was done: use --yes" if rows else f"nothing to {will}{others}"
    document = {"preview": True, "effects": [dict(zip(("key", "state", "job_id"), row, strict=True)) for row in rows]}
    table = Table(("key", "effect", "job"), rows[:SHOWN], empty="", title=title)
    return CommandResult(document, [table, summary] if rows else summary)


def _operation(context: Context, action: BulkAction, reason: str | None) -> Operation:
    app = context.app
    return Operation(
        store=app.store, job_types=app.job_types, ledgers=app.ledgers, action=action, actor=actor(), reason=reason
    )


def _whole(
    context: Context, effect: LedgerRow, named: Named, verb: Literal["retry", "cancel"], reason: str | None
) -> _Answer:
    """By the package whose jobs make the effect together."""
    assert named.spanning is not None
    table = named.spanning.table
    app = context.app
    job_type = next(each for each in app.job_types if each.ledger is not None and each.ledger.table == table)
    act = job_type.retry_effect if verb == "retry" else job_type.cancel_effect
    with app.writing(None, {job_type.queue}) as connection:
        words = act(connection, effect.key, actor=actor(), reason=reason)
    return {"effect": effect.key, "result": words}, words


def _dead(filters: dict[str, Any], *, unknown: bool | None = None) -> DeadFilters:
    options = {name: value for name, value in filters.items() if name not in ("status", "limit_key")}
    if (key := filters["limit_key"]) is not None:
        options["limit_keys"] = (key,) if options["limit_keys"] is None else tuple({key} & {*options["limit_keys"]})
    return DeadFilters(**options, unknown=unknown)


# -- the commands ----------------------------------------------------------------------------------------------


@click.command()
@_names_argument
@_filter_options(*WAITING, *ENDED)
@many_options
@override_option
@reason_option
@command
def retry(
    context: Context, /, *, names: tuple[str, ...], scope: Scope, even_if_done: bool, reason: str | None, **filters: Any
) -> CommandResult:
    """Retry what failed: a job, an e-mail, a delivery, a report.

    KEY or ID is a job's number, an idempotency key, or what a package knows its effects by: an event (msg_…), a
    delivery (msg_…:ep_…), a Message-ID, a report's run (rep_…). It acts at once: an ended job is retried as a new job,
    a waiting one is due now, a failed run goes on with what is missing. What has many effects, such as an endpoint
    (ep_…), and filters show a preview until --yes: they are about what is unresolved, and what waits for its next
    attempt. More than 1,000 jobs become a bulk action.

    An effect that is done, or may have happened, needs --even-if-done. Exit code 1 if anything was refused.

    \b
    Examples:
      effects retry 4711
      effects retry order:1000
      effects retry ep_01M8… --newer 6h --yes
      effects retry --type email.send --code timeout
    """
    action = BulkAction("requeue", even_if_done, even_if_done)
    chosen = _choose(context, names, scope, filters)
    if not chosen.named:
        return act_on_parts(context, _parts_to_retry(action, chosen.filters), reason, scope)

    def act(effect: LedgerRow, named: Named) -> _Answer:
        return _retry_one(context, effect, named, action, reason)

    return _act_on_named(chosen, scope, act, "retry", skips=() if even_if_done else ("done",))


def _parts_to_retry(action: BulkAction, filters: dict[str, Any]) -> list[Part]:
    status = filters["status"]
    if status in WAITING:
        return [Part(BulkAction("run_now"), Filters(**filters))]
    if status is not None:
        return [Part(action, Filters(**filters))]
    return [Part(action, _dead(filters)), Part(BulkAction("run_now"), Filters(**{**filters, "status": "retrying"}))]


def _retry_one(context: Context, effect: LedgerRow, named: Named, action: BulkAction, reason: str | None) -> _Answer:
    app, job_id = context.app, effect.job_id
    if named.spanning is not None:
        return _whole(context, effect, named, "retry", reason)
    with app.store.read() as connection:
        [record] = read_job(app.store, connection, app.ledgers, job_id).jobs
    if record.status not in ENDED:
        queue = actions.run_now(app.store, job_id, actor=actor(), reason=reason)
        app.notifier.send([queue])
        waits = job_evidence(app, job_id).waits
        holds = "" if waits is None or waits.reason == "free_worker" else f". {wait_text(waits)}"
        document = {"job_id": job_id, "result": "due", "queue": queue, "waits": waits}
        return document, f"job {job_id} is due now on queue {queue}{holds}"
    acted = _operation(context, action, reason).act(job_id)
    app.notifier.send({acted.queue} if acted.queue is not None else ())
    if acted.words is not None:
        return {"job_id": job_id, "result": acted.words}, acted.words
    document = {"job_id": acted.new_id, "requeued_from": job_id, "result": "queued", "queue": acted.queue}
    cause = SelectedCause(record.job_type, record.error_code, unknown=False, jobs=1)
    why = None if record.status == "succeeded" else why_not(context, cause)
    doubt = "" if why is None else f". It is likely to end as before: {why}"
    return document, f"job {job_id} retried as job {acted.new_id}{doubt}"


@click.command()
@_names_argument
@job_filter_options(LIVE_SHOWN)
@many_options
@reason_option
@command
def cancel(
    context: Context, /, *, names: tuple[str, ...], scope: Scope, reason: str | None, **filters: Any
) -> CommandResult:
    """Cancel what waits, and ask what runs to stop.

    KEY or ID is as for `effects retry`, and acts at once. What has many effects, and filters, show a preview until
    --yes. An attempt under way is not interrupted: if its effect still happens, it is recorded as done; otherwise it is
    not tried again. Exit code 1 if anything was refused.

    \b
    Examples:
      effects cancel order:1000 --reason "the customer withdrew it"
      effects cancel ep_01M8… --yes
      effects cancel rep_01a2…
    """
    chosen = _choose(context, names, scope, filters)
    if not chosen.named:
        return act_on_parts(context, [Part(BulkAction("cancel"), Filters(**chosen.filters))], reason, scope)

    def act(effect: LedgerRow, named: Named) -> _Answer:
        if named.spanning is not None:
            return _whole(context, effect, named, "cancel", reason)
        return _cancel_one(context, effect, reason)

    return _act_on_named(chosen, scope, act, "cancel", skips=("done", "refused", "abandoned", "unknown"))


def _cancel_one(context: Context, effect: LedgerRow, reason: str | None) -> _Answer:
    """By its key, which tells whether that was in time; a job without one by its id."""
    app, job_id = context.app, effect.job_id
    if effect.key:
        job_type = effect.job_type or None
        cancelled = control.cancel(key=effect.key, job_type=job_type, actor=actor(), reason=reason, effects=app)
        after = cancelled.effect
        if cancelled.result == "ended":
            raise JobStateError(f"job {job_id} is {after.status or after.state}: only a live job can be cancelled")
        facts = {"job_id": after.job_id, "result": cancelled.result, "prevented": cancelled.prevented,
                 "state": after.state}  # fmt: skip
        return _with_what_remains(context, facts, f"job {after.job_id} {_CANCELLED[cancelled.result]}")
    result = cancellation.cancel(app.store, app.ledgers, job_id, actor=actor(), reason=reason)
    words = "cancelled" if result == "cancelled" else "is running: asked to stop, will not be retried"
    return _with_what_remains(context, {"job_id": job_id, "result": result}, f"job {job_id} {words}")


def _with_what_remains(context: Context, facts: dict[str, Any], text: str) -> _Answer:
    """A cancellation, with what a person has to decide where the effect may have happened."""
    evidence = job_evidence(context.app, facts["job_id"])
    has_ended = evidence.standing is not None and evidence.standing.ended
    unresolved = has_ended and any(action.name == "mark-done" for action in evidence.next)
    if unresolved:
        text += f". Its effect may have happened, by an earlier attempt: an unresolved dead letter. {advice(evidence)}"
    elif not has_ended and facts["result"] != "stopped":
        why = f"effects why {facts['job_id']}"
        text += f". If its effect may have happened by then, an unresolved dead letter remains: see `{why}` then"
    return {**facts, "unresolved": unresolved}, text


@click.command()
@_names_argument
@_filter_options()
@many_options
@click.option("--as", "resolution", type=click.Choice(RESOLUTIONS), required=True,
              help="done: it happened. retry: as a new job, perhaps twice. give-up: close it as it is.")  # fmt: skip
@reason_option
@command
def resolve(
    context: Context,
    /,
    *,
    names: tuple[str, ...],
    scope: Scope,
    resolution: str,
    reason: str | None,
    **filters: Any,
) -> CommandResult:
    """Resolve unknown effects, and close dead letters.

    KEY or ID is as for `effects retry`, and acts at once; filters show a preview until --yes. `done` and `retry` are
    about effects that may have happened. `give-up` leaves such an effect unknown; it closes any other dead letter too,
    and then needs --reason. Retention may delete what is closed. Exit code 1 if anything was refused.

    \b
    Examples:
      effects resolve label:3 --as done --reason "it is in the tray"
      effects resolve --type shop.label --as retry --yes
      effects resolve --code http_410 --as give-up --reason "they are gone"
    """
    chosen = _choose(context, names, scope, filters)
    if not chosen.named:
        return act_on_parts(context, _parts_to_resolve(resolution, chosen.filters, reason, scope), reason, scope)

    def act(effect: LedgerRow, named: Named) -> _Answer:
        return _resolve_one(context, effect.job_id, resolution, reason)

    will = resolution.replace("-", " ") if resolution != "done" else "mark as done"
    return _act_on_named(chosen, scope, act, will, skips=("done", "intended"))


def _parts_to_resolve(resolution: str, filters: dict[str, Any], reason: str | None, scope: Scope) -> list[Part]:
    if resolution == "done":
        return [Part(BulkAction("mark_done"), _dead(filters, unknown=True))]
    if resolution == "retry":
        return [Part(BulkAction("resolve_requeue"), _dead(filters, unknown=True))]
    if scope.acts and not reason:
        raise EnqueueError("give-up needs --reason")
    return [
        Part(BulkAction("give_up"), _dead(filters, unknown=True)),
        Part(BulkAction("ignore"), _dead(filters, unknown=False)),
    ]


def _resolve_one(context: Context, job_id: int, resolution: str, reason: str | None) -> _Answer:
    app = context.app
    if resolution == "give-up":
        with app.store.read() as connection:
            is_unknown = read_standing(app.store, connection, app.job_types, job_id).effect == "unknown"
        if not is_unknown and not reason:
            raise EnqueueError(f"the effect of job {job_id} did not happen: to close it as it is, give --reason")
        action = BulkAction("give_up" if is_unknown else "ignore")
    else:
        action = BulkAction("mark_done" if resolution == "done" else "resolve_requeue")
    acted = _operation(context, action, reason).act(job_id)
    app.notifier.send({acted.queue} if acted.queue is not None else ())
    document = {"job_id": acted.new_id or job_id, "resolved": job_id, "result": WILL[action.name].replace(" ", "_")}
    return document, f"job {job_id}: {DONE[action.name]}" + (f" as job {acted.new_id}" if acted.new_id else "")
