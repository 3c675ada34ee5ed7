"""The floor under mail: a loop that renders, builds and sends by smtplib over connections kept open. No record."""

from __future__ import annotations

import queue
import smtplib
import threading
import time
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

import css_inline
from jinja2 import Environment, FileSystemLoader, select_autoescape

from benchmarks.processes import await_go
from benchmarks.systems.mail import SENDER, TEMPLATE, TEMPLATES, context, recipient

ENVELOPE_SENDER = "shop@example.com"


class Writer:
    """Templates compiled once, as anybody would have them."""

    def __init__(self) -> None:
        environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=select_autoescape())
        self._parts = {
            name: environment.get_template(f"{TEMPLATE}/{name}") for name in ("subject.txt", "body.txt", "body.html")
        }
        self._css = css_inline.CSSInliner()

    def render(self, number: int) -> dict[str, str]:
        values = context(number)
        parts = {name: part.render(values) for name, part in self._parts.items()}
        return parts | {"body.html": self._css.inline(parts["body.html"])}

    def build(self, number: int) -> EmailMessage:
        """The standard library's message."""
        rendered = self.render(number)
        message = EmailMessage(policy=SMTP)
        message["From"], message["To"], message["Subject"] = SENDER, recipient(number), rendered["subject.txt"].strip()
        message["Date"] = format_datetime(datetime.now(UTC))
        message["Message-ID"] = f"<{number}@example.com>"
        message.set_content(rendered["body.txt"])
        message.add_alternative(rendered["body.html"], subtype="html")
        return message


def work(threads: str, count: str, port: str, ready: str) -> None:
    """Prints the seconds that it took, from the first message's rendering to the last one's 250.

    With `ready`, one message's bytes are made beforehand, and all are these.
    """
    numbers: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    for number in [*range(int(count)), *([None] * int(threads))]:
        numbers.put(number)
    writer = Writer()
    message = writer.build(0).as_bytes()

    def send() -> None:
        with smtplib.SMTP("127.0.0.1", int(port), local_hostname="localhost") as connection:
            while (number := numbers.get()) is not None:
                if ready:
                    connection.sendmail(ENVELOPE_SENDER, [recipient(number)], message)
                else:
                    connection.send_message(writer.build(number), ENVELOPE_SENDER, [recipient(number)])

    workers = [threading.Thread(target=send) for _ in range(int(threads))]
    await_go()
    begun = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(time.perf_counter() - begun, flush=True)
