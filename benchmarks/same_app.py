"""`python -m benchmarks.same_app`: the app of `same-app.md` in five libraries, rolled back and killed.

Each runs as it stands there, in an environment and a folder of its own. What arrives is counted by order: a mail or a
label that is missing is lost, one of an order that is not there is a ghost, a second one is a double. An effect that
effects has on record as unknown is counted apart: a person is told of it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import socketserver
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from benchmarks.first_program import SERVERS, Program, environment, programs
from benchmarks.tables import markdown

DOCUMENT = Path(__file__).with_name("same-app.md")
ORDERS, KILLS = 30, 6
CATCH_UP_SECONDS = 75.0
QUIET_SECONDS = 5.0  # after which no more is expected of a worker to which nothing is missing
_FRESH = {"EFFECTS_LEASE_SECONDS": "10", "EFFECTS_HEARTBEAT_SECONDS": "2"}

PRINTER = """
import smtplib, time

def print_label(order):
    with open("labels.txt", "a") as file:
        file.write(f"{order}\\n")
    time.sleep(0.1)  # it answers when the label is out

def send_mail(order):
    with smtplib.SMTP("127.0.0.1", SMTP_PORT) as smtp:
        smtp.sendmail("shop@shop.example", "ann@shop.example", f"Subject: Order {order}\\r\\n\\r\\nThank you.\\r\\n")

def write_report(slot):
    with open("reports.txt", "a") as file:
        file.write(f"{time.time()}\\n")
"""

# Buys, and fails or is killed where `buy` comes to its n-th line; without a number it prints how many lines it came to.
CALLER = """
import os, signal, sys
import shop
order, how, nth = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
passed = 0
def trace(frame, event, argument):
    global passed
    if frame.f_code is not shop.buy.__code__:
        return None
    if event == "line":
        passed += 1
        if passed == nth:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("the app fails here")
    return trace
sys.settrace(trace)
try:
    shop.buy(order)
except RuntimeError:
    pass
sys.settrace(None)
print(passed)
"""


class _Mail(socketserver.StreamRequestHandler):
    """One SMTP session; the server notes the order in each subject."""

    def handle(self) -> None:
        with suppress(ConnectionError):  # of a worker that was killed
            self._converse()

    def _converse(self) -> None:
        self._say("220 ready")
        for line in self.rfile:
            word = line[:4].upper().strip()
            if word == b"DATA":
                self._say("354 go on")
                self._take()
            elif word == b"QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 ok")

    def _take(self) -> None:
        text = b""
        while not text.endswith(b"\r\n.\r\n"):
            line = self.rfile.readline()
            if not line:  # its sender is gone: the message is not taken
                return
            text += line
        assert isinstance(self.server, MailServer)
        self.server.orders += map(int, re.findall(rb"^Subject: Order (\d+)", text, re.MULTILINE))
        self._say("250 taken")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


class MailServer(socketserver.ThreadingTCPServer):
    """Takes every message, and keeps which order it is about."""

    allow_reuse_address = daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Mail)
        self.orders: list[int] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Trial:
    """One system's app in a folder, its database, and what has arrived."""

    def __init__(self, program: Program, folder: Path, binaries: Path, server: str, mail: MailServer) -> None:
        self._program, self._binaries, self._mail = program, binaries, mail
        self.folder = folder
        self._url = server if program.server == "PostgreSQL" else ""
        places = {f"{program.server.upper()}_URL": server, "SMTP_PORT": str(mail.port)}
        for name, source in {"shop.py": program.source, "printer.py": PRINTER}.items():
            pattern = "|".join(places)
            (folder / name).write_text(re.sub(pattern, lambda word: places[word[0]], source))
        self._environment = {
            "PATH": os.pathsep.join([str(binaries), os.environ["PATH"]]), "HOME": str(folder), **_FRESH,
            "PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1",
        }  # fmt: skip

    def prepare(self) -> None:
        """Make the table of orders, and do what the document types before the first order."""
        self._sql("CREATE TABLE orders (id integer PRIMARY KEY)")
        for command in self._program.commands[:-2]:
            self._run(["/bin/sh", "-c", command])

    def buy(self, order: int, how: str = "", nth: int = 0) -> int:
        """Buy in a process of its own; how many lines `buy` came to."""
        ran = self._run([str(self._binaries / "python"), "-c", CALLER, str(order), how, str(nth)], check=not how)
        return int(ran.splitlines()[-1]) if ran.strip() else 0

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        """A worker; killed with all its processes at the end."""
        with (self.folder / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {self._program.commands[-1]}"], cwd=self.folder, env=self._environment,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                yield process
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def orders(self) -> set[int]:
        return {int(row[0]) for row in self._sql("SELECT id FROM orders")}

    def labels(self) -> Counter[int]:
        return Counter(map(int, self._lines("labels.txt")))

    def mails(self) -> Counter[int]:
        return Counter(self._mail.orders)

    def reports(self) -> list[float]:
        """When the nightly report was written."""
        return list(map(float, self._lines("reports.txt")))

    def unknown(self) -> set[str]:
        """The keys of effects that are on record as unknown, for a person to look at."""
        if self._program.name != "effects":
            return set()
        query = "SELECT idempotency_key FROM effects_job_history JOIN effects_unresolved ON job_id = id WHERE unknown"
        return {str(key) for (key,) in self._sql(query)}

    def _lines(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().split() if file.exists() else []

    def _run(self, command: list[str], *, check: bool = True) -> str:
        ran = subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=120, check=False
        )
        if check and ran.returncode:
            raise RuntimeError(f"{command} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
        return ran.stdout

    def _sql(self, statement: str) -> list[tuple[object, ...]]:
        if self._url:
            with psycopg.connect(self._url) as connection:
                cursor = connection.execute(statement)
                return cursor.fetchall() if cursor.description else []
        with sqlite3.connect(self.folder / "shop.db") as file:
            rows: list[tuple[object, ...]] = file.execute(statement).fetchall()
        file.close()
        return rows


def catch_up(trial: Trial) -> None:
    """Wait until nothing is missing and all is quiet, or the worker's time is over."""
    deadline, quiet_since, before = time.monotonic() + CATCH_UP_SECONDS, time.monotonic(), (-1, -1)
    while time.monotonic() < deadline:
        labels, mails, orders = trial.labels(), trial.mails(), trial.orders()
        now = (labels.total(), mails.total())
        quiet_since = quiet_since if now == before else time.monotonic()
        before = now
        missing = (orders - labels.keys()) | (orders - mails.keys())
        if time.monotonic() - quiet_since > QUIET_SECONDS and len(missing) <= len(trial.unknown()):
            return
        time.sleep(0.5)


def callers(trial: Trial) -> tuple[int, int, int]:
    """Fail and kill at each line: how many ends that was, what was lost, and how many ghosts came."""
    lines = trial.buy(1)
    order = 1
    for how in ("fail", "kill"):
        for nth in range(1, lines + 1):
            order += 1
            trial.buy(order, how, nth)
    with trial.worker():
        catch_up(trial)
    orders = trial.orders()
    counts = (trial.labels(), trial.mails())
    lost = sum(len(orders - count.keys()) for count in counts)
    return 2 * lines, lost, sum(len(count.keys() - orders) for count in counts)


def workers(trial: Trial, seed: int) -> tuple[int, int, int]:
    """Kill workers amid their work: what was lost and doubled without a record, and what is on record as unknown."""
    draw = random.Random(seed)
    first = 1000
    for order in range(first, first + ORDERS):
        trial.buy(order)
    for _ in range(KILLS):
        arrived = trial.labels().total()
        with trial.worker():
            deadline = time.monotonic() + 30
            while trial.labels().total() <= arrived and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(draw.uniform(0, 0.3))
    with trial.worker():
        catch_up(trial)
    labels, mails, unknown = trial.labels(), trial.mails(), trial.unknown()
    counts = [
        count[order]
        for kind, count in {"label": labels, "mail": mails}.items()
        for order in range(first, first + ORDERS)
        if f"{kind}:{order}" not in unknown
    ]
    return sum(count == 0 for count in counts), sum(max(0, count - 1) for count in counts), len(unknown)


def nightly(trial: Trial) -> str:
    """Whether a slot that passed without a worker is made up for; it is due every other minute."""
    time.sleep(120 - time.time() % 120 + 65)  # past an even minute, into the odd one
    down_until = time.time()
    with trial.worker():
        time.sleep(45)
    return "made up for" if any(moment > down_until for moment in trial.reports()) else "missed"


def run(program: Program, seed: int) -> list[str]:
    """Carry out one system's trials; its row of the table."""
    mail = MailServer()
    threading.Thread(target=mail.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="same-app-") as place, SERVERS[program.server]() as server:
        binaries = environment(program, Path(place) / "venv")
        work = Path(place) / "work"
        work.mkdir()
        trial = Trial(program, work, binaries, server, mail)
        trial.prepare()
        ends, lost, ghosts = callers(trial)
        lost_by_kills, doubled, unknown = workers(trial, seed)
        slot = nightly(trial)
    mail.shutdown()
    lines = sum(1 for line in program.source.partition("# nightly")[0].splitlines() if line.strip())
    return [
        program.name, str(lines), str(len(program.commands)), program.server, f"{lost} and {ghosts} of {ends} ends",
        str(lost_by_kills), str(doubled), str(unknown), slot,
    ]  # fmt: skip


HEAD = [
    "system", "lines", "commands", "server", "caller ended: lost and ghosts", "worker killed: lost", "doubled",
    "on record as unknown", "slot while no worker ran",
]  # fmt: skip


def main(arguments: list[str]) -> None:
    """Run all, or those named, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_app", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="this system alone; repeatable")
    parser.add_argument("--seed", type=int, default=1, help="of the moments at which workers are killed")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}")
    chosen: Callable[[Program], bool] = lambda program: options.only is None or program.name in options.only  # noqa: E731
    rows = [run(program, options.seed) for program in programs(DOCUMENT) if chosen(program)]
    print("\n".join(markdown([HEAD, *rows])))


if __name__ == "__main__":
    main(sys.argv[1:])
