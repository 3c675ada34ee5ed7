"""A process beside a test run that ends its servers when the run has ended, even by a SIGKILL: its pipe then closes.

python -m tests.support.reaper FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    sys.stdin.read()
    from tests.support import databases  # noqa: PLC0415 - it waits in little memory

    databases.remove_servers(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
