"""A socket server whose loop runs in a thread of its own, for as long as a `with` block lasts."""

from __future__ import annotations

import threading
from socketserver import BaseServer
from types import TracebackType
from typing import Any, Self

POLL_SECONDS = 0.02  # how long the end of a block may wait for the loop


class Serving:
    """`with Serving(server) as serving: … serving.port …`; also what peers are made of."""

    def __init__(self, server: BaseServer) -> None:
        self._server: Any = server
        self._thread = threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
