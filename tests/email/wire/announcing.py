"""Messages that share one connection: the second is announced with the end of the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from effects_email.transport.base import OutgoingMessage, SendResult, Transport
from effects_email.transport.smtp.transport import SmtpTransport
from tests.support.waiting import wait_until

ONE = "connections=1"


def waiting(transport: Transport) -> int:
    """How many messages wait for a connection."""
    assert isinstance(transport, SmtpTransport)
    return len(transport._pool._waiting)


def is_pipelined(transport: Transport) -> bool:
    """Whether the transport still sends commands ahead of their answers."""
    assert isinstance(transport, SmtpTransport)
    return transport._pool._order.pipelined


def send_behind(
    transport: Transport,
    first: OutgoingMessage,
    followers: Sequence[OutgoingMessage],
    releases: Sequence[Callable[[], None]] = (),
    *,
    seconds: float = 20,
    ended: Event | None = None,
) -> list[SendResult | BaseException]:
    """Send all, the followers in this order behind the first, which goes on when they wait for its connection.

    Args:
        releases: of the followers, in place of ones that do nothing.
        ended: set as soon as one of all has its result.
    """
    entered = Event()

    def hold() -> None:
        entered.set()
        wait_until(lambda: waiting(transport) >= len(followers))

    def send(outgoing: OutgoingMessage, release: Callable[[], None]) -> SendResult | BaseException:
        try:
            return transport.send(outgoing, release=release, seconds=seconds)
        except Exception as error:
            return error
        finally:
            if ended is not None:
                ended.set()

    with ThreadPoolExecutor(len(followers) + 1) as threads:
        futures = [threads.submit(send, first, hold)]
        wait_until(lambda: entered.is_set() or futures[0].done())
        for number, outgoing in enumerate(followers):
            release = releases[number] if number < len(releases) else _release
            futures.append(threads.submit(send, outgoing, release))
            wait_until(lambda: waiting(transport) > number or futures[0].done())  # noqa: B023 - now
        return [future.result() for future in futures]


def _release() -> None:
    """Nothing is recorded."""
