"""A TCP connection within a time limit, the name's resolution included."""

from __future__ import annotations

import queue
import socket
import threading
from typing import Any

from effects.extend import check_network, is_address
from effects_email.transport.progress import SendProgress


def own_name(sock: socket.socket) -> str:
    """What to call ourselves: this machine's name, if it has a domain, else its address as a literal of RFC 5321.

    No lookup: asking the resolver for our own name can take minutes.
    """
    name = socket.gethostname()
    if "." in name.strip("."):
        return name
    address = sock.getsockname()[0].partition("%")[0]
    return f"[IPv6:{address}]" if ":" in address else f"[{address}]"


def connect(host: str, port: int, progress: SendProgress) -> socket.socket:
    """To the first address of the host that answers. Each may take its share of the time that is left, so that those
    behind one that is silent (IPv6 that leads nowhere, say) are tried as well.

    Raises:
        OSError: none did, or the stage's time is over.
        NetworkRefused: a test admits no connection to this host.
    """
    check_network(host)
    failure: OSError | None = None
    addresses = _addresses(host, port, progress)
    for number, (family, address) in enumerate(addresses):
        try:
            return _connected(family, address, progress.remaining() / (len(addresses) - number))
        except OSError as error:
            failure = error
    raise failure or socket.gaierror("no address")


def _connected(family: int, address: Any, seconds: float) -> socket.socket:
    """OSError also where this machine has no such family: a kernel without IPv6."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def _addresses(host: str, port: int, progress: SendProgress) -> list[tuple[int, Any]]:
    """In the resolver's order. It is asked in a thread of its own, because it knows no deadline."""
    if is_address(host):
        return [(answer[0], answer[4]) for answer in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    answers: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answers.put(error if isinstance(error, OSError) else socket.gaierror("no host name"))

    threading.Thread(target=ask, name="effects-email-resolve", daemon=True).start()
    try:
        resolved = answers.get(timeout=progress.remaining())
    except queue.Empty:
        raise socket.gaierror("no answer from the resolver in time") from None
    if isinstance(resolved, OSError):
        raise resolved
    return [(answer[0], answer[4]) for answer in resolved]
