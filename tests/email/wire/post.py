"""Messages that go through the whole of it: written to a database, sent by workers, counted by the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from email import message_from_bytes
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import text

from effects import Effects
from effects.retry import OnUnknown
from effects.worker import Worker
from effects_email.api import send_templated_email
from tests.peers.postfix import PASSWORD, USER, Postfix
from tests.support.waiting import PATIENCE_SECONDS, wait_until

SENDER = "shop@example.com"
PAST_EVERY_WAIT_SECONDS = 3600.0


def write_templates(folder: Path) -> Path:
    """One template, `note`, with a text that needs a doubled dot on the wire."""
    note = folder / "emails" / "note"
    note.mkdir(parents=True)
    (note / "subject.txt").write_text("Note {{ number }}\n")
    (note / "body.txt").write_text(".{{ number }} begins with a dot\n{{ filling }}\n.\n")
    return folder / "emails"


class Post:
    """An app of the test's own process and what it has written."""

    def __init__(self, app: Effects, templates: Path, smtp_url: str, keys: str) -> None:
        self.app = app
        self.templates, self.smtp_url, self.keys = templates, smtp_url, keys

    @property
    def environment(self) -> dict[str, str]:
        """For workers of their own process."""
        return {
            "EFFECTS_SMTP_URL": self.smtp_url, "EFFECTS_EMAIL_FROM": SENDER, "EFFECTS_KEYS": self.keys,
            "EFFECTS_EMAIL_TEMPLATES": str(self.templates),
        }  # fmt: skip

    def write(self, number: int = 1, *, on_unknown: OnUnknown | None = None, filling: str = "") -> str:
        """One message to a recipient of its own; its Message-ID."""
        receipt = send_templated_email(
            "note", to=f"user{number}@example.org", context={"number": number, "filling": filling},
            event_id=f"note:{number}", on_unknown=on_unknown, effects=self.app,
        )  # fmt: skip
        return receipt.message_id

    def once(self) -> None:
        """Do what is due now."""
        Worker(self.app).drain()

    def drain(self, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Do all that is left to do, whenever it is due."""
        wait_until(self._drained, seconds=seconds)

    def _drained(self) -> bool:
        Worker(self.app).drain()
        if not self.rows("SELECT 1 AS found FROM effects_jobs"):
            return True
        self.app.store.shift_clock(PAST_EVERY_WAIT_SECONDS)
        return False

    def rows(self, statement: str, **parameters: Any) -> list[dict[str, Any]]:
        """What the database holds, committed."""
        with self.app.store.read() as connection:
            return [dict(row._mapping) for row in connection.execute(text(statement), parameters)]

    def outcomes(self) -> tuple[str, ...]:
        """Of the attempts, in their order."""
        attempts = self.rows("SELECT outcome FROM effects_job_attempts WHERE attempt > 0 ORDER BY attempt")
        return tuple(row["outcome"] for row in attempts)

    def states(self) -> dict[str, str]:
        """Message-ID → the ledger's state."""
        emails = self.rows("SELECT message_id, state FROM effects_sent_emails")
        return {row["message_id"]: row["state"] for row in emails}

    def faults(self, received: Sequence[bytes], copies_max: int) -> list[str]:
        """Everything that should not be so: lost, invented, too many copies, a second one without an attempt whose
        outcome is on record as unknown, or other bytes in a copy.
        """
        copies: dict[str, list[bytes]] = {}
        for data in received:
            copies.setdefault(message_id_of(data), []).append(data)
        states = self.states()
        unknown = {row["message_id"] for row in self.rows(_UNKNOWN)}
        ended = {row["message_id"]: row for row in self.rows(_ENDS)}
        faults = [f"invented: {message_id}" for message_id in copies if message_id not in states]
        for message_id, state in states.items():
            received_copies = copies.get(message_id, [])
            listed = ended[message_id]["status"] == "dead" if message_id in ended else False
            if not received_copies and not listed:
                faults.append(f"lost: {message_id} is {state}")
            if state == "done" and not received_copies:
                faults.append(f"said to be sent and was not: {message_id}")
            if len(received_copies) > copies_max:
                faults.append(f"{len(received_copies)} copies of {message_id}, which is {state}")
            if len(received_copies) > 1 and message_id not in unknown:
                faults.append(f"{len(received_copies)} copies of {message_id} without a record of the first")
            if len(set(received_copies)) > 1:
                faults.append(f"other bytes in a copy of {message_id}")
        return faults


_ENDS = """
SELECT s.message_id, h.status, h.error_code
FROM effects_sent_emails AS s JOIN effects_job_history AS h ON h.id = s.job_id
"""
_UNKNOWN = """
SELECT s.message_id FROM effects_sent_emails AS s JOIN effects_job_attempts AS a ON a.job_id = s.job_id
WHERE a.verdict = 'unknown'
"""


def message_id_of(data: bytes) -> str:
    return str(message_from_bytes(data)["Message-ID"]).strip("<> ")


def copies(received: Sequence[bytes]) -> Counter[str]:
    return Counter(map(message_id_of, received))


def postfix_url(server: Postfix, ca_file: Path, *, user: str = USER, password: str = PASSWORD) -> str:
    credentials = f"{quote(user, safe='')}:{quote(password, safe='')}"
    return f"smtp+starttls://{credentials}@localhost:{server.port}?ca_file={ca_file}"
