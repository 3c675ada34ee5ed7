"""What a person may do with a message: the functions of the commands."""

from __future__ import annotations

from effects.extend import whole_number
from effects.web import ActionCall, ActionEnd, ActionField, PageAction, Visit
from effects_email.admin import key_of_job, requeue_email
from effects_email.errors import EmailNotFound


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
