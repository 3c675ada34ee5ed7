"""`effects dev`: a worker and its dashboard for development, from which no effect leaves this machine.

One process. Where code, a template or the clock has changed, it ends in order and executes itself again: imports,
caches and waits are all fresh, and the socket that listens stays open meanwhile.

A package offers its inbox by an entry point `effects.dev`: a function of the app and a private folder of its own. It
replaces all by which its jobs would leave this machine, whatever the settings say, and returns the pages that show what
has come instead.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from sqlalchemy import URL

from effects.app.effects import Effects
from effects.errors import ConfigurationError, EnqueueError, SchemaMismatch
from effects.kit.exit_codes import ExitCode
from effects.kit.files import open_storage
from effects.kit.frames import is_library
from effects.kit.importing import entry_points
from effects.kit.moments import moment
from effects.kit.network import NetworkRefused, replace_network_rule
from effects.kit.process import private_file
from effects.kit.text.unsafe import whole_number
from effects.kit.text.wording import duration
from effects.model.job import LIVE
from effects.operate.tables import queue_status
from effects.store import schedules
from effects.store.db import revisions
from effects.store.db.urls import describe_database, hosts_of
from effects.web.application import Dashboard
from effects.web.exchange import PageAnswer
from effects.web.pages import Pages, notice
from effects.web.routes import NavigationEntry, PageRoute
from effects.web.security import LOOPBACK_NAMES, Person
from effects.web.server import PageServer
from effects.web.visit import Visit
from effects.worker import Worker

GROUP = "effects.dev"
GRACE_SECONDS = 5.0
LOOK_SECONDS = 0.5
FOLDER = ".effects-dev"
SOCKET_VARIABLE = "EFFECTS_DEV_SOCKET"  # of the process that executed itself: the number of its file
_WATCHED = (".py", ".html", ".txt", ".md", ".toml", ".json", ".css", ".sql")
_LEFT_OUT = ("__pycache__", "node_modules", "site-packages")
_STOPS = (signal.SIGINT, signal.SIGTERM)
_LOOPBACK = ("localhost", "")  # without a host, libpq takes the socket's folder
HOUR_SECONDS, DAY_SECONDS = 3_600, 86_400
AHEAD_MAX_SECONDS = 3_650 * DAY_SECONDS
STEPS = {"1 hour": HOUR_SECONDS, "6 hours": 6 * HOUR_SECONDS, "1 day": DAY_SECONDS, "3 days": 3 * DAY_SECONDS,
         "7 days": 7 * DAY_SECONDS}  # fmt: skip
Inbox: TypeAlias = Callable[[Effects, Path], Pages]


def keep_file(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file of an inbox, readable for its owner alone: whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with private_file(path) as file:
        for piece in pieces:
            file.write(piece)


class DevClock:
    """How far the dev worker's clock is ahead of the database's: kept in a file, so that it never goes back."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def ahead_seconds(self) -> int:
        """0 until it is moved."""
        try:
            return whole_number(self.file.read_text(encoding="ascii").strip()) or 0
        except (OSError, ValueError):
            return 0

    def move(self, seconds: int) -> None:
        """Move it forward. The worker that runs has to start again by it.

        Raises:
            EnqueueError: not forward, or further than ten years in all.
        """
        ahead = self.ahead_seconds + seconds
        if seconds <= 0 or ahead > AHEAD_MAX_SECONDS:
            raise EnqueueError("the clock goes forward only, and ten years at most")
        keep_file(self.file, [f"{ahead}\n".encode()])


def dev_pages(app: Effects, folder: Path, clock: DevClock) -> list[Pages]:
    """The page of the clock and the inboxes of installed packages, all under one heading.

    From here on no job of theirs leaves this machine.
    """
    inboxes = []
    for entry in entry_points(GROUP):
        own = folder / entry.name
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        inboxes.append(entry.load()(app, own))
    entries = list(chain.from_iterable(pages.navigation for pages in inboxes))
    desk = Pages(
        name="dev", label="Development", package="effects.web",
        navigation=(NavigationEntry("dev", "Clock", "k"), *entries),
        routes=(
            PageRoute("dev", ("GET",), "/dev", partial(_desk, clock, entries), role="admin", personal=False),
            PageRoute("dev_move", ("POST",), "/dev/clock", partial(_move, clock), role="admin", personal=False,
                      acts=True),
        ),
        notices={"dev_move": "The clock is moved. The worker starts again by it."},
    )  # fmt: skip
    return [desk, *(replace(pages, navigation=()) for pages in inboxes)]


def _desk(clock: DevClock, entries: Sequence[NavigationEntry], visit: Visit) -> PageAnswer:
    """What the clock says, how it is moved, and what there is to look at."""
    with visit.app.store.read() as connection:
        clock_time = moment(visit.app.store.now(connection))
    return visit.page(
        "dev.html", clock_time=clock_time, ahead=words_ahead(clock), steps=STEPS, entries=entries, notice=notice(visit)
    )


def _move(clock: DevClock, visit: Visit) -> PageAnswer:
    hours = whole_number(visit.form.get("hours", "")) or 0
    clock.move(STEPS.get(visit.form.get("by", ""), hours * HOUR_SECONDS))
    return visit.redirect("dev", did="dev_move")


def words_ahead(clock: DevClock) -> str:
    """Such as `3 days ahead`."""
    ahead = clock.ahead_seconds
    return f"{duration(ahead)} ahead" if ahead else "as the database's"


# -- the process ----------------------------------------------------------------------------------------------


def execute_again(listening: socket.socket) -> NoReturn:
    """Become a fresh process with the same words and the socket."""
    listening.set_inheritable(True)
    sys.stdout.flush()
    os.environ[SOCKET_VARIABLE] = str(listening.fileno())
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - its own words


def check_database(url: URL) -> None:
    """
    Raises:
        ConfigurationError: it is on another machine; said before anything is connected or looked up.
    """
    if url.get_backend_name() == "sqlite":
        return
    strangers = sorted(host for host in _hosts(url) if not is_here(host))
    if strangers:
        raise ConfigurationError(
            f"effects dev starts on this machine's databases alone, and {describe_database(url)} is on "
            f"{', '.join(strangers)}: give a SQLite file, or a PostgreSQL on localhost"
        )


def _hosts(url: URL) -> set[str]:
    """Where libpq would connect, by the URL and by its own variables."""
    from psycopg.pq import Conninfo  # noqa: PLC0415 - an app on SQLite needs no libpq

    if "service" in url.query:
        return {"a service"}
    defaults = {option.keyword.decode(): (option.val or b"").decode() for option in Conninfo.get_defaults()}
    addresses = url.query.get("hostaddr") or defaults["hostaddr"]
    named = {host for host, _ in hosts_of(url)} or set(defaults["host"].split(","))
    return named | set((addresses if isinstance(addresses, str) else ",".join(addresses)).split(","))


def is_here(host: str) -> bool:
    """Whether this name or address of a server is this machine's by itself: no resolver is asked."""
    if host in _LOOPBACK or host.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_connection(app: Effects) -> None:
    """
    Raises:
        ConfigurationError: the app's engine has connected to another machine than its URL names.
    """
    if not app.store.is_postgresql:
        return
    with app.store.read() as connection:
        info: Any = getattr(connection.connection.driver_connection, "info", None)
        address = str(getattr(info, "hostaddr", "") or getattr(info, "host", ""))
    if not is_here(address):
        raise ConfigurationError(f"effects dev starts on this machine's databases alone; this one is on {address}")


def refuse(host: str) -> bool:
    """The network rule: no transport of effects connects to anything, whatever was replaced.

    Raises:
        NetworkRefused: always.
    """
    raise NetworkRefused(f"effects dev lets nothing leave this machine: a transport was about to connect to {host}")


@dataclass
class Files:
    """What an app consists of, as far as it is seen: its modules, and what lies in the working directory.

    `extra`: further files.
    """

    extra: list[Path] = field(default_factory=list)
    _seen: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seen = self._now()

    def changed(self) -> bool:
        """Whether one has changed, come or gone since this was last asked. One that is seen for the first time because
        its module was imported meanwhile is no change.
        """
        before, self._seen = self._seen, self._now()
        here = str(Path.cwd())
        return any(
            before.get(name) != self._seen.get(name)
            for name in before.keys() | self._seen.keys()
            if name in before or name.startswith(here)
        )

    def wait(self) -> None:
        """Return at the next change."""
        while not self.changed():
            threading.Event().wait(LOOK_SECONDS)

    def _now(self) -> dict[str, int]:
        modules = [str(getattr(module, "__file__", None) or "<>") for module in list(sys.modules.values())]
        names = {*(name for name in modules if not is_library(name)), *map(str, self.extra), *_beneath(str(Path.cwd()))}
        times = {}
        for name in names:
            with suppress(OSError):
                times[name] = os.stat(name).st_mtime_ns  # noqa: PTH116 - of thousands, twice a second
        return times


def _beneath(folder: str) -> Iterator[str]:
    """The files of an app in a folder; hidden folders and environments left out."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if not entry.name.startswith(".") and entry.name not in _LEFT_OUT:
                yield from _beneath(entry.path)
        elif entry.name.endswith(_WATCHED):
            yield entry.path


class Desk:
    """One run of the worker and its dashboard."""

    def __init__(self, app: Effects, files: Files) -> None:
        self.app, self.files = app, files
        self._changed = self._stopped = False
        self._serving: PageServer | None = None
        self.banner = ""
        check_database(app.engine.url)
        name = hashlib.sha256(describe_database(app.engine.url).encode()).hexdigest()[:12]
        self.folder = Path.cwd() / FOLDER / name
        self.clock = DevClock(self.folder / "clock")
        self._pages: list[Any] = []
        self._stranger: ConfigurationError | None = None

    def open(self, *, take_over: bool) -> None:
        """Make the database ready, and replace whatever could leave this machine.

        Raises:
            ConfigurationError: the database is not one for development.
        """
        app = self.app
        is_new = not self.folder.exists()
        _check_connection(app)
        with suppress(SchemaMismatch):  # there are no tables yet
            revisions.check(app.store)
            self._refuse_workers()
        app.create_tables(actor="dev", reason="effects dev")
        if is_new and not take_over:
            _refuse_waiting(app)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        keep_file(self.folder.parent / ".gitignore", [b"*\n"])
        schedules.register(app.store, list(app.schedules.values()))
        app.store.shift_clock(self.clock.ahead_seconds)
        self._refuse_workers()
        replace_network_rule(refuse)
        _keep_files_here(app, self.folder / "files")
        self._pages = dev_pages(app, self.folder, self.clock)
        self.files.extra.append(self.clock.file)
        self.files.changed()
        self.banner = (
            f"development: {describe_database(app.engine.url)} · clock {words_ahead(self.clock)} · what "
            "effects sends stays on this machine"
        )

    @property
    def again(self) -> bool:
        """Whether the process is to execute itself: who stops it means that, whatever has changed meanwhile."""
        return self._changed and not self._stopped

    @contextmanager
    def hearing_signals(self) -> Iterator[None]:
        """End `run` in order by Ctrl-C or SIGTERM, also before it serves, and where the shell has had them ignored.

        A second one ends it at once, and so does each that comes afterwards: the next process begins without them.
        """
        for number in _STOPS:
            signal.signal(number, lambda *_: self._stop())
        try:
            yield
        finally:
            for number in _STOPS:
                signal.signal(number, signal.SIG_DFL)

    def _stop(self) -> None:
        if self._stopped:
            raise KeyboardInterrupt
        self._stopped = True
        if self._serving is not None:
            self._serving.stop()

    def run(self, listening: socket.socket) -> int:
        """Work and serve until a signal that is heard, or a change.

        Raises:
            ConfigurationError: another worker has come to the database.
        """
        board = Dashboard(
            self.app, lambda _: Person("developer", role="admin", personal=True), title="effects dev",
            hosts=LOOPBACK_NAMES, more=self._pages, banner=self.banner,
        )  # fmt: skip
        self._serving = serving = PageServer(board, listening.dup())
        if self._stopped:
            serving.stop()
        worker = Worker(self.app, grace_seconds=GRACE_SECONDS)
        codes: list[int] = []

        def work() -> None:
            try:
                codes.append(worker.run())
            finally:
                serving.stop()

        working = threading.Thread(target=work, name="effects-dev-worker", daemon=True)
        over = threading.Event()
        looking = threading.Thread(target=self._look, args=(serving, over), name="effects-dev-files", daemon=True)
        working.start()
        looking.start()
        serving.run()
        over.set()
        worker.stop_directly()
        working.join()
        looking.join()
        if self._stranger is not None:
            raise self._stranger
        return next(iter(codes), ExitCode.ERROR)

    def _look(self, serving: PageServer, over: threading.Event) -> None:
        """Until the end: whether a file has changed, or another worker has come."""
        while not over.wait(LOOK_SECONDS):
            try:
                self._refuse_workers()
            except ConfigurationError as error:
                self._stranger = error
            self._changed = self._stranger is None and self.files.changed()
            if self._changed or self._stranger is not None:
                serving.stop()
                return

    def _refuse_workers(self) -> None:
        """
        Raises:
            ConfigurationError: a worker other than ours lives on this database, which would send what we hold back.
        """
        app, lease = self.app, self.app.settings.lease_seconds
        ours = f"{socket.gethostname()}:{os.getpid()}:"
        with app.store.read() as connection:
            workers = queue_status.read_workers(app.store, connection, lease)
        ahead = (0.0, app.store.sql.shift_seconds)  # the clocks that its heartbeats may go by
        for worker in workers:
            lives = any(abs(worker.silent_seconds - seconds) < lease for seconds in ahead)
            if lives and worker.state != "failed" and not worker.id.startswith(ours):
                raise ConfigurationError(
                    f"a worker runs on {describe_database(app.engine.url)} ({worker.id}): it would send what effects "
                    f"dev holds back. Stop it; one that was killed counts as dead after {lease:g} s"
                )


def _refuse_waiting(app: Effects) -> None:
    """
    Raises:
        ConfigurationError: jobs wait that were meant for another worker.
    """
    status = queue_status.read_status(app.store, app.settings.lease_seconds, app.job_types, app.queues)
    types = sorted({count.job_type for count in status.counts if count.status in LIVE} - {"effects.prune"})
    if types:
        raise ConfigurationError(
            f"jobs wait in {describe_database(app.engine.url)} ({', '.join(types)}), and effects dev would end them "
            "without their effects. If that is meant, add --take-over, once"
        )


def _keep_files_here(app: Effects, folder: Path) -> None:
    """Replace object storage by a folder: an upload is an effect too."""
    if app.settings.storage_url.startswith("s3:"):
        url = f"file:{folder}"
        app.settings = replace(app.settings, storage_url=url)
        vars(app)["storage"] = open_storage(url)  # cached when first used
