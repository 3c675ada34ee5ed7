"""The entry point `effects.pages`: routes, navigation, and what the core's pages show of e-mail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from effects.web import NavigationEntry, PageRoute, Pages, Role, StoryLink, Visit
from effects_email.dashboard import message_pages, suppression_pages, template_pages
from effects_email.dashboard.message_actions import ACTIONS
from effects_email.errors import EmailNotFound, TemplateNotFound
from effects_email.writing import JOB_TYPE


def _links(visit: Visit, evidence: Any) -> Sequence[StoryLink]:
    """Of the job of a message: the message."""
    if evidence.job_type != JOB_TYPE or not evidence.facts.jobs:
        return ()
    return (StoryLink("The message", visit.url("email_message", id=evidence.facts.jobs[0].id)),)


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
        _look("email_messages", "/email/messages", message_pages.messages),
        _post("email_address", "/email/address", message_pages.of_address),
        _look("email_message", "/email/messages/{id}", message_pages.message),
        _post("email_reveal", "/email/messages/{id}/reveal", message_pages.reveal),
        _look("email_frame", "/email/messages/{id}/html", message_pages.frame, personal=True),
        _look("email_templates", "/email/templates", template_pages.templates),
        _look("email_template", "/email/templates/show", template_pages.template),
        _look("email_template_frame", "/email/templates/html", template_pages.frame),
        _look("email_suppressions", "/email/suppressions", suppression_pages.suppressions),
        _post("email_suppressed", "/email/suppressions/reveal", suppression_pages.reveal),
        _post("email_suppress", "/email/suppressions/add", suppression_pages.add, "operator"),
        _post("email_lift", "/email/suppressions/lift", suppression_pages.lift, "operator"),
    ),
    actions=ACTIONS,
    notices={
        "email_suppress": "The address is not written to from now on.",
        "email_lift": "It is lifted: messages to the address are sent again.",
    },
    missing=(EmailNotFound, TemplateNotFound),
    links=_links,
)
