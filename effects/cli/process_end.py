"""The end of the process: Python waits for threads of others, and a handler may have left one that hangs."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import NoReturn

from effects.logs import frame_places

THREADS_SECONDS = 10.0  # for threads that others have started, once everything is done

_log = logging.getLogger("effects.worker")


def leave(code: int) -> NoReturn:
    """Exit with this code, within ten seconds also where threads go on that Python would wait for.

    Then what runs at the exit (`atexit`) is left out.

    Raises:
        SystemExit: always.
    """
    if _threads():
        threading.Thread(target=_leave_behind, args=(code,), name="effects-process-end", daemon=True).start()
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
