"""A worker that serves its metrics and probes, and what it answers."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

from tests.support.processes import Fleet


def fetch(port: int, path: str = "/metrics") -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def serving(processes: Fleet) -> Any:
    return processes.worker("--metrics-port", "0", app="tests.cli.shop_app:app", EFFECTS_LOG_FORMAT="text")


def port_of(output: str) -> int:
    [line] = [line for line in output.splitlines() if "metrics.served" in line] or [""]
    return int(line.rpartition("port=")[2] or 0)
