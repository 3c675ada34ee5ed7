"""What open browsers cost a PostgreSQL server: `effects web` in a process of its own, polled as its script polls."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from benchmarks.servers import PostgresServer, effects_url
from effects.web.visit import LIVE_HEADER

TICKS = os.sysconf("SC_CLK_TCK")
BROWSERS, POLL_SECONDS = 20, 5.0
WARM_UP_SECONDS, SECONDS = 40.0, 120.0  # what was counted for a person who opened a page has passed by then
COUNTING = 202
# What people leave open.
OPEN = ("/", "/", "/", "/needs", "/needs", "/jobs", "/queues", "/workers", "/numbers", "/webhooks")
_LINK = re.compile(r"sign in, .*: (http://\S+)")
_EXIT_SECONDS = 20
_ANSWER_SECONDS = 30


def postgresql_percent(server: PostgresServer, database: str, scale: float) -> tuple[float, str]:
    """The share of a core that the whole server works for the browsers, and how it was counted.

    Each asks every 5 seconds, as one does in which every answer brings something new. The server's CPU is that of the
    postmaster and all its processes, the ended ones with them; what it uses without a browser is taken off.
    """
    seconds = max(10.0, SECONDS * scale)
    with server.connect() as admin:
        postmaster = _parent(admin.info.backend_pid)
    with _effects_web(database) as link:
        address, cookie = _sign_in(link)
        time.sleep(WARM_UP_SECONDS * min(1.0, scale))
        idle = _used(postmaster, seconds)
        statuses: Counter[int] = Counter()
        with _browsers(address, cookie, statuses):
            time.sleep(WARM_UP_SECONDS * min(1.0, scale))
            statuses.clear()
            polled = _used(postmaster, seconds)
            answers = dict(statuses)
    assert sum(answers.values()) >= BROWSERS * seconds / POLL_SECONDS / 2, answers
    assert not answers.keys() - {200, COUNTING, 304}, answers
    with psycopg.connect(database) as connection:
        [version] = connection.execute("SELECT current_setting('server_version')").fetchone() or ("",)
    note = (
        f"{BROWSERS} browsers at `effects web` over HTTP, every {POLL_SECONDS:g} s for {seconds:g} s: "
        f"{answers.get(200, 0)} answers with a page, {answers.get(304, 0)} without news; PostgreSQL {version} "
        f"used {polled:.2f} % of a core, and {idle:.2f} % before them."
    )
    return max(0.0, polled - idle), note


# -- the server ------------------------------------------------------------------------------------------------


def _used(postmaster: int, seconds: float) -> float:
    """Percent of a core that the server's processes use from now on."""
    before, begun = _server_seconds(postmaster), time.monotonic()
    time.sleep(seconds)
    return 100 * (_server_seconds(postmaster) - before) / (time.monotonic() - begun)


def _server_seconds(postmaster: int) -> float:
    """A process that ends, a parallel worker's too, goes on counting as the postmaster's child."""
    own = _stat(postmaster)
    ticks = sum(int(own[at]) for at in (11, 12, 13, 14))  # utime, stime, and those of children that have ended
    for pid in _children(postmaster):
        try:
            fields = _stat(pid)
        except OSError:  # it has just ended
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def _children(parent: int) -> Sequence[int]:
    pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return [pid for pid in pids if _parent(pid) == parent]


def _parent(pid: int) -> int:
    try:
        return int(_stat(pid)[1])
    except OSError:
        return 0


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()


# -- the dashboard and its browsers ----------------------------------------------------------------------------


@contextmanager
def _effects_web(database: str) -> Iterator[str]:
    """`effects web` on a free port; gives the link that signs in."""
    command = [
        str(Path(sys.executable).with_name("effects")),
        "--database-url",
        effects_url(database),
        "web",
        "--port",
        "0",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        link = next((match[1] for line in process.stdout if (match := _LINK.search(line)) is not None), None)
        if link is None:
            raise RuntimeError(f"effects web ended early with code {process.wait()}")
        yield link
    finally:
        process.terminate()
        process.wait(_EXIT_SECONDS)


def _sign_in(link: str) -> tuple[str, str]:
    """The dashboard's host and port, and the cookie of the session."""
    address, secret = urlsplit(link).netloc, urlsplit(link).query
    connection = http.client.HTTPConnection(address, timeout=_ANSWER_SECONDS)
    headers = {"content-type": "application/x-www-form-urlencoded", "origin": f"http://{address}"}
    connection.request("POST", "/sign-in/enter", secret, headers)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 303, answer.status
    return address, answer.headers["set-cookie"].partition(";")[0]


@contextmanager
def _browsers(address: str, cookie: str, statuses: Counter[int]) -> Iterator[None]:
    """Each opens its page and then refreshes it, as `app.js` does, until the block is left."""
    stop = threading.Event()
    pages = [OPEN[number % len(OPEN)] for number in range(BROWSERS)]
    threads = [threading.Thread(target=_browse, args=(address, page, cookie, statuses, stop)) for page in pages]
    for thread in threads:
        thread.start()
        time.sleep(POLL_SECONDS / BROWSERS)
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _browse(address: str, page: str, cookie: str, statuses: Counter[int], stop: threading.Event) -> None:
    connection = http.client.HTTPConnection(address, timeout=_ANSWER_SECONDS)
    headers, tag = {"cookie": cookie}, ""
    while not stop.is_set():
        connection.request("GET", page, headers=headers)
        answer = connection.getresponse()
        answer.read()
        statuses[answer.status] += 1
        tag = answer.headers.get("etag", "" if answer.status == COUNTING else tag)
        if answer.status != COUNTING:
            headers = {"cookie": cookie, LIVE_HEADER: "1", "if-none-match": tag}
        stop.wait(POLL_SECONDS if answer.status != COUNTING else 1)
    connection.close()
