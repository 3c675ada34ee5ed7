"""What one effect enters of our packages, and so what there is to read for its way. No time is measured.

    .venv/bin/python -m benchmarks.modules_entered            # a table
    .venv/bin/python -m benchmarks.modules_entered --list     # and each module, with the number of functions entered

The effect is the second of its kind in the process, on SQLite: imports, templates and pools are there. Each call has a
key that is new, so that none is the duplicate of another. The worker's part is its drain from start to end, so its
start, its services and the looks at empty queues are counted too. The first row is a drain with no job: what a worker
enters in any case. Lines are those with code of the functions that are entered, whether or not they are run.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import sqlalchemy as sa

import effects
import effects_email
import effects_reports
import effects_webhooks
from effects import Attempt, Done, Effects, JobType, enqueue, set_default
from effects.keys.encryption import generate_key
from effects.worker import Worker
from effects_email import send_templated_email
from effects_reports import report, request_report
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook

FOLDERS = {
    str(Path(package.__file__ or "").parent): package.__name__
    for package in (effects, effects_email, effects_webhooks, effects_reports)
}
TEMPLATES = Path(__file__).parent / "emails"
ROWS = 100  # one chunk
CONTEXT = {"name": "Ann", "order": {"number": "1", "lines": [], "total": "1.00"}, "link": "https://shop.example/1"}

_orders = sa.Table("orders", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))


class _Nothing(JobType[dict[str, int]]):
    name = "nothing.do"

    def perform(self, payload: dict[str, int], attempt: Attempt) -> Done:
        return Done()


@report("orders", key=("id",), columns={"id": "Order"}, formats=("csv",))
def _report(params: dict[str, str]) -> sa.Select[Any]:
    return sa.select(_orders)


@dataclass
class Trace:
    """Code objects that were entered, by module."""

    entered: dict[str, set[CodeType]] = field(default_factory=dict)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and (module := _module(code.co_filename)):
            self.entered.setdefault(module, set()).add(code)

    @property
    def functions(self) -> int:
        return sum(map(len, self.entered.values()))

    @property
    def lines(self) -> int:
        """Lines with code of the functions that were entered."""
        functions = {function for entered in self.entered.values() for function in entered}
        return sum(len({line for _, _, line in function.co_lines() if line}) for function in functions)

    def __or__(self, trace: Trace) -> Trace:
        modules = self.entered.keys() | trace.entered.keys()
        return Trace({name: self.entered.get(name, set()) | trace.entered.get(name, set()) for name in modules})


def _module(file: str) -> str | None:
    folder = next((folder for folder in FOLDERS if file.startswith(f"{folder}/")), None)
    return None if folder is None else FOLDERS[folder] + file.removeprefix(folder).removesuffix(".py").replace("/", ".")


def traced(act: Callable[[], object]) -> Trace:
    """What `act` enters, in this thread and in those that it starts."""
    trace = Trace()
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        act()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return trace


class _Partner(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def _partner() -> Iterator[str]:
    """The URL of a partner that answers 204."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Partner) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def _app(folder: str) -> Effects:
    app = Effects(
        f"sqlite:///{folder}/effects.db", keys=f"k={generate_key()}", log_level="ERROR", allow_private_addresses=True,
        smtp_url=f"maildir:{folder}/mail", email_from="Shop <shop@example.com>", templates=TEMPLATES,
        reports=[_report], storage_url=f"file:{folder}/files",
    )  # fmt: skip
    app.add(_Nothing())
    app.create_tables()
    _orders.metadata.create_all(app.engine)
    with app.engine.begin() as connection:
        connection.execute(_orders.insert(), [{"id": number} for number in range(ROWS)])
    return app


def _calls() -> dict[str, Callable[[str], object]]:
    """Each takes a key that no call before it had."""
    return {
        "no job": lambda key: None,
        "enqueue": lambda key: enqueue(_Nothing.name, {}, key=key),
        "deliver_webhook, 1 endpoint": lambda key: deliver_webhook(WebhookEvent("order.paid", {"id": 1}, key=key)),
        "send_templated_email to a maildir": lambda key: send_templated_email(
            "receipt", to="ann@example.org", context=CONTEXT, key=key
        ),
        "request_report, 1 chunk": lambda key: request_report("orders", {}, key=key),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modules_entered", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print each module and how many functions were entered")
    listed = parser.parse_args().list
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, _partner() as url:
        app = _app(folder)
        set_default(app)
        add_endpoint(url)
        print("Modules, functions and lines entered.\n\n| effect | call | worker | both |\n|---|---|---|---|")
        for name, call in _calls().items():
            call("first")
            Worker(app).drain()
            _print(name, traced(lambda call=call: call("second")), traced(lambda: Worker(app).drain()), listed)


def _print(name: str, call: Trace, work: Trace, listed: bool) -> None:
    both = call | work
    print(f"| {name} |", " | ".join(f"{len(t.entered)}, {t.functions}, {t.lines:,}" for t in (call, work, both)), "|")
    for module in sorted(both.entered) if listed else []:
        print(f"    {module:50} {len(call.entered.get(module, ())):4} {len(work.entered.get(module, ())):4}")


if __name__ == "__main__":
    main()
