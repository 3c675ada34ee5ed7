"""What a worker finds when it starts: what its shell, its environment, and the import of its app have set up."""

from __future__ import annotations

import decimal
import faulthandler
import gc
import locale
import logging
import logging.config
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.processes import effects

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the log server is away")


class _Echo:
    """A standard error that writes to the log, which writes to standard error."""

    def write(self, text: str) -> int:
        logging.getLogger("stderr").warning(text)
        return len(text)

    def flush(self) -> None:
        return


def _removed_folder() -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    Path(folder).rmdir()


def _zone(name: str) -> None:
    os.environ["TZ"] = name
    time.tzset()


def _config(**root: Any) -> None:
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": True, **root})


def _exit(*_: object) -> None:
    sys.exit(3)


def _facts_of_every_line() -> None:
    make = logging.getLogRecordFactory()

    def factory(*values: Any, **named: Any) -> logging.LogRecord:
        record = make(*values, **named)
        vars(record).update(job="-", worker="-", type="-", at="-")
        return record

    logging.setLogRecordFactory(factory)


def _broken_handler() -> None:
    logging.basicConfig(handlers=[Broken(), logging.StreamHandler()], force=True)


def _echo() -> None:
    logging.basicConfig(handlers=[logging.StreamHandler(os.fdopen(os.dup(2), "w"))])
    sys.stderr = _Echo()  # type: ignore[assignment]


def _locale() -> None:
    for name in ("tr_TR.UTF-8", "de_DE.ISO-8859-1", "C"):
        with suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, name)
            return


# Of the shell, the service manager, the image: before the interpreter runs the command.
OUTSIDE: dict[str, Callable[[], object]] = {
    "umask 0": lambda: os.umask(0),
    "umask 0777": lambda: os.umask(0o777),
    "removed folder": _removed_folder,
    "nohup": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    "blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS),
    "TZ of no place": lambda: _zone("Mars/Phobos"),
    "TZ of 25 hours": lambda: _zone("XYZ-24:59:59"),
    "LC_ALL": _locale,
    "ASCII": lambda: [stream.reconfigure(encoding="ascii") for stream in (sys.stdout, sys.stderr)],  # type: ignore[union-attr]
    "no stdin": lambda: os.close(0),
    "PGCLIENTENCODING": lambda: os.environ.update(PGCLIENTENCODING="LATIN1"),
    "PGTZ": lambda: os.environ.update(PGTZ="Asia/Kathmandu"),
    "PGDATESTYLE": lambda: os.environ.update(PGDATESTYLE="German, DMY"),
    "PGAPPNAME": lambda: os.environ.update(PGAPPNAME="täglich 'x'"),
    "PGOPTIONS": lambda: os.environ.update(PGOPTIONS="-c default_transaction_isolation=serializable"),
    "PGPASSFILE": lambda: os.environ.update(PGPASSFILE="/nonexistent/.pgpass", PGSYSCONFDIR="/nonexistent"),
}
# By the import of the app.
INSIDE: dict[str, Callable[[], object]] = {
    "handlers": lambda: [signal.signal(number, _exit) for number in SIGNALS[:3]],
    "alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 3600),
    "faulthandler": lambda: faulthandler.enable(all_threads=False),
    "logging off": _config,
    "logging to stderr": lambda: _config(
        handlers={"out": {"class": "logging.StreamHandler"}}, root={"handlers": ["out"], "level": "ERROR"}
    ),
    "basicConfig": lambda: logging.basicConfig(level=logging.CRITICAL),
    "broken handler": _broken_handler,
    "facts of every line": _facts_of_every_line,
    "stderr is the log": _echo,
    "warnings are errors": lambda: warnings.simplefilter("error"),
    "socket timeout": lambda: socket.setdefaulttimeout(0.001),
    "decimal": lambda: decimal.getcontext().__setattr__("prec", 3),
    "seed": lambda: random.seed(0),
    "no garbage collector": gc.disable,
    "hooks": lambda: (setattr(sys, "excepthook", _exit), setattr(threading, "excepthook", _exit)),
    "folder": lambda: os.chdir("/"),
}


def work(names: tuple[str, ...], *options: str) -> None:
    """`effects work` in these surroundings, in a process of its own."""
    for name in names:
        if name in OUTSIDE:
            OUTSIDE[name]()
    effects("--app", "tests.support.surrounded_app:app", "work", *options)
