"""The process of a command: how it was called, and how it ends, where it stands still too, and in time.

Python's garbage collector would look through all that a start makes, again and again, and find nothing: without it an
empty drain takes a sixth less CPU time. Where the interpreter stands still, as in a call into C that never gives it
back, no thread of Python's runs and no signal is heard: the timer of `faulthandler` is C's, writes where each thread
stands to standard error, and ends the process with code 1. At the end Python waits for the threads of others, and a
handler may have left one that hangs.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import NoReturn

from effects.kit.logs import frame_places, own_logger

_NAME = "effects"
_program: ContextVar[str | None] = ContextVar("effects_program", default=None)  # None outside of `called_as`
_ADVICE = re.compile(rf'(`|"command": "){_NAME} (?=[a-z-])(?!--)')


@contextmanager
def called_as(program: str = _NAME) -> Iterator[None]:
    """Let advice that is printed meanwhile name this program, such as `manage.py effects`."""
    token = _program.set(program)
    try:
        yield
    finally:
        _program.reset(token)


def name_options(options: Mapping[str, str | None]) -> None:
    """Let advice that follows within `called_as` have these options, which `effects` was called with; else nothing.

    Args:
        options: by name, such as `app`; None where one was not given.
    """
    if _program.get() == _NAME:
        words = [word for name, value in options.items() if value is not None for word in (f"--{name}", value)]
        _program.set(shlex.join([_NAME, *words]))


def as_called(text: str) -> str:
    """A text whose advice (`` `effects jobs list` ``, or an action's command) names the program as it was called."""
    program = _program.get()
    return text if program in (None, _NAME) else _ADVICE.sub(lambda advice: f"{advice[1]}{program} ", text)


_USUAL = gc.get_threshold()
_LATER = 100_000  # new objects between two looks: some ten megabytes at most


def postpone_garbage() -> None:
    """Look for garbage rarely from now on."""
    gc.set_threshold(_LATER)


def resume_garbage() -> None:
    """Look for garbage as usual, and never again at what is there now: for a process that stays."""
    gc.freeze()
    gc.set_threshold(*_USUAL)


BOUND_SECONDS_MIN = 30.0  # below this a machine that is merely busy would count
MARGIN_SECONDS = 5.0


class StandstillTimer:
    """Ends the process unless it is put off again and again.

    Args:
        lease_seconds: of a worker. Whoever stands still for so long has lost its jobs to rescue already, so that to end
            it loses nothing more: neither where it was only frozen (SIGSTOP), and the timer expires as it goes on. The
            clock stops while the machine sleeps.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._seconds = max(lease_seconds, BOUND_SECONDS_MIN)
        self._output = _own_stderr()
        self.is_on_terminal = is_on_terminal()
        self._systemd = os.environ.get("NOTIFY_SOCKET", "") if os.environ.get("WATCHDOG_USEC") else ""

    def end(self, code: int) -> None:
        """End it now, with this code."""
        os._exit(code)

    def came_round(self) -> None:
        """The interpreter goes on, and so does what it is to do; systemd is told, too (`WatchdogSec`)."""
        self.put_off(0.0)
        if self._systemd:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
                notifier.setblocking(False)
                notifier.sendto(b"WATCHDOG=1", self._systemd.replace("@", "\0", 1))

    def put_off(self, seconds: float) -> None:
        """The process has at least so many seconds from now.

        The timer is a thread, of C's: where none can be started, there is no timer until it is put off again.
        """
        with suppress(RuntimeError, MemoryError):
            seconds = max(self._seconds, seconds + MARGIN_SECONDS)
            faulthandler.dump_traceback_later(seconds, exit=True, file=self._output)

    def close(self) -> None:
        """It ends by itself."""
        faulthandler.cancel_dump_traceback_later()
        if self._output > 2:
            os.close(self._output)


def is_on_terminal() -> bool:
    """Whether standard error is a terminal; not where the app has put something in its place."""
    try:
        return sys.stderr.isatty()
    except AttributeError:
        return False


@contextmanager
def standstill(lease_seconds: float) -> Iterator[StandstillTimer]:
    """Watch this process meanwhile."""
    timer = StandstillTimer(lease_seconds)
    timer.came_round()  # a first job may be quicker than whoever puts it off
    try:
        yield timer
    finally:
        timer.close()


def _own_stderr() -> int:
    """Standard error, opened once more where that can be: then it does not wait for a full pipe."""
    try:
        return os.open("/proc/self/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # a socket, as of systemd's journal, or another system
        return 2


_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ASKS = (signal.SIGUSR1, signal.SIGUSR2)
_is_under_nohup = False


def note_nohup() -> None:
    """Remember that a window that closes is to be ignored, before the app's import sets a handler of its own."""
    global _is_under_nohup  # noqa: PLW0603 - of the process, as its signals are
    _is_under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@contextmanager
def signals(stop: Callable[[], object], tell: Callable[[], object]) -> Iterator[None]:
    """Call `stop` for each SIGINT and SIGTERM, `tell` for each SIGUSR1 and SIGUSR2.

    SIGHUP is a first call of `stop`, never a second one: for one window that closes, the kernel and the shell send it.

    They are called on their own thread, which is there before anything can run out. Python runs a signal's handler
    in the main thread, between two of its steps. One that hangs in a database's library takes none; the number that C
    writes to the wake-up socket arrives all the same.

    What the process was started with, or the app set up when it was imported, gives way: a handler that stops, a signal
    that is blocked. Two stay: SIGHUP that is ignored, as under nohup; the app's own handler for SIGUSR1 or SIGUSR2.
    """
    reader, writer = socket.socketpair()
    reader.setblocking(True)  # whatever the app's `socket.setdefaulttimeout`
    writer.setblocking(False)
    numbers = _heard_signals()
    handlers = {number: signal.signal(number, lambda *_: None) for number in numbers}
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    def relay() -> None:
        is_ending = False
        while received := reader.recv(64):
            for number in filter(numbers.__contains__, received):  # not of what only the app listens to
                with suppress(Exception):  # whatever it is, the next signal must be heard
                    if number in _ASKS:
                        tell()
                    elif not is_ending or number != signal.SIGHUP:
                        is_ending = True
                        stop()

    thread = threading.Thread(target=relay, name="effects-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: of C's
        writer.close()
        thread.join(1.0)
        reader.close()


def _heard_signals() -> list[signal.Signals]:
    """Those that are ours to hear."""
    if _is_under_nohup:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stops = [number for number in _STOPS if (number, signal.getsignal(number)) != (signal.SIGHUP, signal.SIG_IGN)]
    return [*stops, *(number for number in _ASKS if signal.getsignal(number) is signal.SIG_DFL)]


THREADS_SECONDS = 10.0  # for threads that others have started, once everything is done

_log = own_logger("effects.worker")


def leave(code: int) -> NoReturn:
    """Exit with this code, within ten seconds also where threads go on that Python would wait for.

    Then, and where no thread can be started, what runs at the exit (`atexit`) is left out.

    Raises:
        SystemExit: always.
    """
    if _threads():
        try:
            threading.Thread(target=_leave_behind, args=(code,), name="effects-process-end", daemon=True).start()
        except (RuntimeError, MemoryError):  # without a thread that looks, one of theirs could hold it up forever
            os._exit(code)
    sys.exit(code)


def _threads() -> list[threading.Thread]:
    """Those of others. Also for daemons Python waits, where they are an executor's."""
    main = threading.main_thread()
    return [thread for thread in threading.enumerate() if thread is not main and not thread.name.startswith("effects-")]


def _leave_behind(code: int) -> None:
    time.sleep(THREADS_SECONDS)
    if not (threads := _threads()):
        return
    try:
        frames = sys._current_frames()
        for thread in threads:
            frame = frames.get(thread.ident or 0)
            at = None if frame is None else frame_places(frame)
            _log.error("process.thread_left", extra={"named": thread.name, "exit_code": code, "at": at})
    finally:
        os._exit(code)
