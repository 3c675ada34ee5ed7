"""The pages of e-mail: messages, templates, suppressions; and the entry point `effects.pages`.

The list of messages shows nothing personal; those to an address are for who may see it. The HTML of a message is shown
in a frame that can do nothing: no script, no form, nothing fetched, no cookie of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from sqlalchemy import Row

from effects import ConfigurationError, DeliveryError, EffectsError
from effects.extend.actions import AuditAction
from effects.extend.ledger import LEDGER_STATES
from effects.extend.text import moment, whole_number
from effects.web import (
    PAGE_ROWS,
    ActionCall,
    ActionEnd,
    ActionField,
    NavigationEntry,
    PageAction,
    PageAnswer,
    PageRoute,
    Pages,
    Role,
    StoryLink,
    Visit,
    before_of,
    choice_of,
    notice,
    story_values,
    text_of,
)
from effects_email.admin import EmailPage, EmailRecord, get_email, key_of_job, list_emails, requeue_email
from effects_email.errors import EmailInvalid, EmailNotFound, SuppressionInvalid, TemplateNotFound
from effects_email.events import FATES
from effects_email.message.attachments import Files, inline_images
from effects_email.message.source import MessageSource, open_content
from effects_email.state import state_of
from effects_email.suppression import (
    REASONS,
    Suppression,
    find_suppressions,
    list_suppressions,
    suppress,
    suppression_log,
    unsuppress,
)
from effects_email.tables import sent
from effects_email.tables.lists import read_versions
from effects_email.templates.folder import Version
from effects_email.templates.gallery import cases_of, lint
from effects_email.templates.rendering import Rendered
from effects_email.writing import JOB_TYPE

_CSP = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'self'"
_REMOTE = re.compile(r"(?:src|background|href)\s*=\s*[\"']?https?://([^/\"'\s>?#]{1,253})", re.IGNORECASE)
_HOSTS_MAX = 10
_REVEAL_MESSAGE = AuditAction("message", "reveal")
ADDRESS_ROWS = 100
KEPT_SECONDS = 10.0
CLIPPED_BYTES = 102 * 1024  # where Gmail cuts a message
GALLERY_MAX = 60
_REVEAL_ADDRESSES, _REVEAL_MESSAGES = AuditAction("suppressions", "reveal"), AuditAction("messages", "reveal")
_TEMPLATES_FOUND = 10
_PEOPLE_MAX = 20  # of a message, whose suppressions are looked up


def framed(html: str) -> PageAnswer:
    """The HTML as it is, behind its own policy."""
    headers = (
        ("content-security-policy", _CSP), ("x-frame-options", "SAMEORIGIN"), ("cache-control", "no-store"),
        ("referrer-policy", "no-referrer"),
    )  # fmt: skip
    return PageAnswer(200, html.encode("utf-8", errors="replace"), headers=headers)


def remote_hosts(html: str | None) -> list[str]:
    """The hosts that the HTML links to or would load from, in its order."""
    return list(dict.fromkeys(match[1].lower() for match in _REMOTE.finditer(html or "")))[:_HOSTS_MAX]


def _requeue(call: ActionCall) -> ActionEnd:
    requeued = requeue_email(
        call.visit.app, key_of_job(call.visit.app, job_of(call.subject)), actor=call.actor, reason=call.reason,
        render_again=call.fields["render_again"] == "yes", confirm_unknown=call.fields["even_if_unknown"] == "yes",
        confirm_done=call.fields["even_if_done"] == "yes",
    )  # fmt: skip
    return ActionEnd(call.visit.url("job", id=requeued.job_id))


def _to_message(visit: Visit, name: str) -> str:
    return visit.url("email_message", id=job_of(name))


def job_of(name: str) -> int:
    """A message is named by the id of its job here: its key may be personal.

    Raises:
        EmailNotFound: this is no id.
    """
    job_id = whole_number(name)
    if job_id is None:
        raise EmailNotFound("there is no message of this job")
    return job_id


ACTIONS = (
    PageAction("email_requeue", "/email/messages/requeue", "message of job", "operator", "Send again",
               "A new job sends the message with the same bytes. A group's message goes to those who do not have it. "
               "What was sent already is sent to all, as another message.",
               "It is sent again: this is the new job.", _requeue, _to_message, fields=(
                   ActionField("render_again", "Rendered again from the newest template", "tick"),
                   ActionField("even_if_unknown", "Even if it may have been sent: then it may arrive twice", "tick"),
                   ActionField("even_if_done", "Even if it was sent: then it arrives twice", "tick", role="admin"),
               )),
)  # fmt: skip


def messages(visit: Visit) -> PageAnswer:
    """Messages, newest first, without recipients and subjects."""
    return _messages(visit, visit.query)


def reveal_messages(visit: Visit) -> PageAnswer:
    """The same with recipients and subjects, noted in the audit log first."""
    visit.note_look(_REVEAL_MESSAGES, "list")
    return _messages(visit, visit.form, revealed=True)


def _messages(visit: Visit, fields: Mapping[str, str], *, revealed: bool = False) -> PageAnswer:
    status, before = choice_of(fields, "status", LEDGER_STATES), None if revealed else before_of(visit)
    fate = choice_of(fields, "fate", FATES)
    page = list_emails(visit.app, status=status, fate=fate, before=_key(visit, before), limit=PAGE_ROWS)
    filters = {name: value for name, value in (("status", status), ("fate", fate)) if value is not None}
    return visit.page(
        "email/messages.html", page=page, status=status, statuses=LEDGER_STATES, fate=fate, fates=FATES,
        filters=filters, revealed=revealed, people=_people(visit, page) if revealed else {}, first=before is None,
        older=_older(visit, page), notice=notice(visit),
    )  # fmt: skip


def _people(visit: Visit, page: EmailPage) -> dict[int, tuple[str, str]]:
    """By the job of each message whom it goes to, and its subject; those whose content is deleted are not in it."""
    with visit.app.store.read() as connection:
        rows = [sent.find_by_job(visit.app.store, connection, each.job_id) for each in page.emails]
    sources = {row.job_id: source for row in rows if row is not None and (source := _source(visit, row)) is not None}
    return {
        job_id: (", ".join(address.spec for _, address in source.recipients()), source.subject)
        for job_id, source in sources.items()
    }


def of_address(visit: Visit) -> PageAnswer:
    """What became of the messages to an address, and whether it is suppressed; noted in the audit log first."""
    address = visit.form.get("address")
    if address is None:
        raise EmailInvalid("give an address")
    visit.note_address(address)
    page = list_emails(visit.app, address=address, limit=ADDRESS_ROWS)
    return visit.page(
        "email/address.html", revealed=True, address=address, page=page, most=ADDRESS_ROWS,
        suppressions=find_suppressions(address, effects=visit.app), log=suppression_log(address, effects=visit.app),
    )  # fmt: skip


def message(visit: Visit) -> PageAnswer:
    """One message, by the id of its job, without what is personal."""
    return _message(visit)


def reveal_message(visit: Visit) -> PageAnswer:
    """The same with recipients, subject and content, noted in the audit log first."""
    visit.note_look(_REVEAL_MESSAGE, visit.values["id"])
    return _message(visit, revealed=True)


def _message(visit: Visit, *, revealed: bool = False) -> PageAnswer:
    record = get_email(visit.app, key_of_job(visit.app, job_of(visit.values["id"])))
    source = _source(visit, _row(visit)) if revealed else None
    return visit.page(
        "email/message.html", **{**story_values(visit, visit.evidence(record.job_id)), "links": ()}, revealed=revealed,
        record=record, source=source, advice=_advice(record), suppressions=_suppressions(visit, source),
        hosts=remote_hosts(source.html) if source is not None else [],
        frame=visit.url("email_frame", id=visit.values["id"], ticket=visit.ticket(_what(visit))) if revealed else None,
    )  # fmt: skip


def _advice(record: EmailRecord) -> str | None:
    """Whether sending it again can help, by how it ended and by the server's code."""
    if record.state == "unknown":
        return "It may have arrived: if it is sent again, it may arrive twice."
    if record.state == "refused" and record.reply_code is not None and 500 <= record.reply_code <= 599:
        return "Sending it again unchanged gets the same reply: change first what the reply names."
    if record.state == "abandoned":
        return "It was not sent: sending it again is safe, and helps once its cause is gone."
    return None


def _suppressions(visit: Visit, source: MessageSource | None) -> list[Suppression]:
    """What holds for those whom it goes to; of a message that is revealed."""
    people = [] if source is None else [address.spec for _, address in source.recipients()]
    return [each for spec in people[:_PEOPLE_MAX] for each in find_suppressions(spec, effects=visit.app)]


def message_frame(visit: Visit) -> PageAnswer:
    """The HTML of a message, for the frame of a page that has just noted the look."""
    row = _row(visit) if visit.has_ticket(_what(visit)) else None
    source = _source(visit, row)
    if row is None or source is None or source.html is None:
        raise EmailNotFound("there is no HTML to see here: open the message again")
    try:
        files = Files(visit.app).read(source, row.key)
        html = inline_images(source.html, source.attachments, files)
    except (DeliveryError, EffectsError):  # an attachment is gone
        html = source.html
    return framed(html)


def _what(visit: Visit) -> str:
    return f"message {visit.values['id']}"


def _row(visit: Visit) -> Row[Any] | None:
    with visit.app.store.read() as connection:
        return sent.find_by_job(visit.app.store, connection, job_of(visit.values["id"]))


def _source(visit: Visit, row: Row[Any] | None) -> MessageSource | None:
    """None where the content was deleted, at the end of its retention."""
    content = None if row is None else open_content(visit.app, row.key, row.content, row.sealed)
    return None if content is None else content.source


def _key(visit: Visit, job_id: int | None) -> str | None:
    """A page begins at a job in addresses: the key of a message may be personal."""
    return None if job_id is None else key_of_job(visit.app, job_id)


def _older(visit: Visit, page: EmailPage) -> int | None:
    if page.next_before is None:
        return None
    if page.emails and page.emails[-1].key == page.next_before:
        return page.emails[-1].job_id
    return get_email(visit.app, page.next_before).job_id


class Shown(NamedTuple):
    """A template of the gallery; `error`: why it cannot be shown."""

    name: str
    locale: str | None
    version: Version | None
    subject: str | None
    error: str | None


def templates(visit: Visit) -> PageAnswer:
    """Every template in every language, as it looks."""
    try:
        folder = state_of(visit.app).folder
    except ConfigurationError as error:
        return visit.page("email/templates.html", shown=[], place=None, problem=str(error), more=0)
    names = folder.names()
    shown = [_shown(visit, name, locale) for name, locale in names[:GALLERY_MAX]]
    return visit.page(
        "email/templates.html", shown=shown, place=folder.place, problem=None, more=len(names) - GALLERY_MAX
    )


def _shown(visit: Visit, name: str, locale: str | None) -> Shown:
    state = state_of(visit.app)
    try:
        version = state.folder.find(name, locale)
        context = next(iter(cases_of(state.folder, version).values()))
        return Shown(name, locale, version, state.renderer.render(version, context).subject, None)
    except EffectsError as error:
        return Shown(name, locale, None, None, str(error))


def template_page(visit: Visit) -> PageAnswer:
    """One template, by its first case or the one that is asked for."""
    version, case, cases = _chosen(visit)
    state = state_of(visit.app)
    problem, rendered = None, None
    try:
        rendered = state.renderer.render(version, cases[case])
    except EffectsError as error:
        problem = str(error)
    with visit.app.store.read() as connection:
        sent = read_versions(visit.app.store, connection, version.name)
    findings = visit.read("templates", KEPT_SECONDS, lambda: lint(state.folder))
    return visit.page(
        "email/template.html", template=version, cases=list(cases), case=case, rendered=rendered, problem=problem,
        locales=[locale for name, locale in state.folder.names() if name == version.name],
        findings=[each for each in findings if (each.template, each.locale) == (version.name, version.locale)],
        sent=[(row, moment(row.first_at), moment(row.last_at)) for row in sent],
        size=_size(rendered), clipped=CLIPPED_BYTES, hosts=remote_hosts(rendered.html if rendered else None),
        frame=visit.url("email_template_frame", name=version.name, locale=version.locale, case=case),
    )  # fmt: skip


def _size(rendered: Rendered | None) -> int:
    return 0 if rendered is None else len((rendered.html or rendered.text).encode())


def template_frame(visit: Visit) -> PageAnswer:
    """The HTML of a template, for a frame."""
    version, case, cases = _chosen(visit)
    html = state_of(visit.app).renderer.render(version, cases[case]).html
    if html is None:
        raise TemplateNotFound(f"template {version.name!r} has no HTML")
    return framed(html)


def _chosen(visit: Visit) -> tuple[Version, str, dict[str, Mapping[str, Any]]]:
    try:
        folder = state_of(visit.app).folder
    except ConfigurationError as error:
        raise TemplateNotFound(str(error)) from None
    version = folder.find(text_of(visit.query, "name") or "", text_of(visit.query, "locale"))
    cases = cases_of(folder, version)
    case = visit.query.get("case", "")
    return version, case if case in cases else next(iter(cases)), cases


def suppressions(visit: Visit) -> PageAnswer:
    """What holds now, without addresses."""
    return _list(visit)


def reveal_addresses(visit: Visit) -> PageAnswer:
    """The same with the addresses, noted in the audit log first."""
    visit.note_look(_REVEAL_ADDRESSES, choice_of(visit.form, "cause", REASONS) or "all")
    return _list(visit, revealed=True)


def _list(visit: Visit, *, revealed: bool = False) -> PageAnswer:
    fields = visit.form if revealed else visit.query
    reason = choice_of(fields, "cause", REASONS)
    rows: list[Suppression] = list_suppressions(reason=reason, limit=PAGE_ROWS * 2, effects=visit.app)
    return visit.page(
        "email/suppressions.html", revealed=revealed, rows=rows, reason=reason, reasons=REASONS, most=PAGE_ROWS * 2,
        notice=notice(visit),
    )  # fmt: skip


def add(visit: Visit) -> PageAnswer:
    """Suppress an address, by hand."""
    with visit.acting():
        suppress(
            _address(visit), source="web", actor=visit.someone.actor, why=visit.form.get("reason"), effects=visit.app
        )
    return visit.redirect("email_suppressions", did="email_suppress")


def lift(visit: Visit) -> PageAnswer:
    """Ask first, then lift what holds for an address."""
    address = _address(visit)
    if visit.form.get("sure") != "yes":
        return visit.page("email/lift.html", revealed=True, address=address)
    with visit.acting():
        unsuppress(address, actor=visit.someone.actor, why=visit.form.get("reason"), effects=visit.app)
    return visit.redirect("email_suppressions", did="email_lift")


def _address(visit: Visit) -> str:
    address = visit.form.get("address")
    if address is None:
        raise SuppressionInvalid("give an address")
    return address


def _links(visit: Visit, evidence: Any) -> Sequence[StoryLink]:
    """Of the job of a message: the message."""
    if evidence.job_type != JOB_TYPE or not evidence.facts.jobs:
        return ()
    return (StoryLink("The message", visit.url("email_message", id=evidence.facts.jobs[0].id)),)


def _find(visit: Visit, question: str) -> Sequence[StoryLink]:
    """Templates by a part of their name."""
    try:
        names = state_of(visit.app).folder.names()
    except ConfigurationError:
        return ()
    return [
        StoryLink(f"Template {name}", visit.url("email_template", name=name, locale=locale))
        for name, locale in names if question.lower() in name.lower()
    ][:_TEMPLATES_FOUND]  # fmt: skip


def _look(name: str, pattern: str, view: Any, *, personal: bool = False) -> PageRoute:
    return PageRoute(name, ("GET",), pattern, view, role="viewer", personal=personal)


def _post(name: str, pattern: str, view: Any, role: Role | Literal["public"] = "viewer") -> PageRoute:
    """A look at what is personal, or an action that names an address: never by an address in a URL."""
    return PageRoute(name, ("POST",), pattern, view, role=role, personal=True, acts=True)


PAGES = Pages(
    name="email",
    label="E-mail",
    package="effects_email.dashboard",
    navigation=(
        NavigationEntry("email_messages", "Messages", "m"),
        NavigationEntry("email_templates", "Templates", "p"),
        NavigationEntry("email_suppressions", "Suppressions", "x"),
    ),
    routes=(
        _look("email_messages", "/email/messages", messages),
        _post("email_revealed", "/email/messages/reveal", reveal_messages),
        _post("email_address", "/email/address", of_address),
        _look("email_message", "/email/messages/{id}", message),
        _post("email_reveal", "/email/messages/{id}/reveal", reveal_message),
        _look("email_frame", "/email/messages/{id}/html", message_frame, personal=True),
        _look("email_templates", "/email/templates", templates),
        _look("email_template", "/email/templates/show", template_page),
        _look("email_template_frame", "/email/templates/html", template_frame),
        _look("email_suppressions", "/email/suppressions", suppressions),
        _post("email_suppressed", "/email/suppressions/reveal", reveal_addresses),
        _post("email_suppress", "/email/suppressions/add", add, "operator"),
        _post("email_lift", "/email/suppressions/lift", lift, "operator"),
    ),
    actions=ACTIONS,
    notices={
        "email_suppress": "The address is not written to from now on.",
        "email_lift": "It is lifted: messages to the address are sent again.",
    },
    missing=(EmailNotFound, TemplateNotFound),
    links=_links,
    find=_find,
)
