"""How many files and sockets this process may have open: async handlers may need one for each attempt in flight."""

from __future__ import annotations

import resource

BESIDES = 1_152  # for the database, logs, libraries, and connections that are kept idle


def raise_limit() -> None:
    """Raise the soft limit to the hard one, where the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS reports no hard limit, and refuses to have none
            return


def most() -> int:
    """As many as `raise_limit` can reach."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 2**31 if hard == resource.RLIM_INFINITY else hard
