"""The awaitable form of a call that takes `session=`: in an asynchronous session, or off the event loop's thread.

So a call knows where in the app it was made, and by which thread or task: a warning or a refusal names that line.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from enum import Enum
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from sqlalchemy.exc import UnboundExecutionError

from effects.errors import EnqueueError
from effects.kit.text.wording import described

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session


class Alone(Enum):
    """`effects.ALONE`, the only one: a transaction of our own, in place of a session."""

    ALONE = "ALONE"

    def __repr__(self) -> str:
        return "effects.ALONE"


ALONE = Alone.ALONE
AnyAsyncSession: TypeAlias = "Alone | AsyncSession | async_scoped_session[AsyncSession] | AsyncConnection"

Result = TypeVar("Result")
_INSIDE = ("effects", "contextlib")  # frames between the app and the place where its session is looked at
Owner: TypeAlias = tuple[int, int | None]
_INSIDE_A_CALL = ("effects", "contextlib", "asyncio")  # frames between the app and us
_announced: ContextVar[CallSite | None] = ContextVar("effects_call_site", default=None)


async def run_in_async(
    call: Callable[..., Result], *, session: AnyAsyncSession | None = None, **arguments: Any
) -> Result:
    """Carry out a synchronous call in the caller's asynchronous transaction, or in a transaction and thread of its own.

    Cancelled, there is no half of the call. In the caller's transaction on PostgreSQL the statement under way is broken
    off with its connection, and the transaction cannot be committed any more. On SQLite, where that would leave the
    file locked, and without a session, the call comes to its end before `CancelledError` is raised. On SQLite the
    caller's transaction still decides; without a session it may have been committed.

    Args:
        call: takes `session=` and whatever `arguments` name.
        session: an AsyncSession, a scoped one or an AsyncConnection; ALONE or None for our own transaction, in a
            thread of the loop's default executor.

    Raises:
        EnqueueError: the session is a synchronous one or none at all.
        Whatever the call raises.
    """
    if session is None or session is ALONE:
        alone = {} if session is None else {"session": session}
        with calling_from_here():
            return await _to_its_end(asyncio.to_thread(lambda: call(**arguments, **alone)))
    transaction = async_session_of(session)
    if transaction is None:
        raise EnqueueError(
            f"{call.__name__}_async: session is {described(session)}; pass an AsyncSession or AsyncConnection, "
            f"or call {call.__name__}(…, session=session)"
        )
    _refuse_not_started(transaction)
    running = transaction.run_sync(lambda synchronous: call(**arguments, session=synchronous))
    return await (_to_its_end(running) if _is_sqlite(transaction) else running)


def _refuse_not_started(transaction: AsyncSession | AsyncConnection) -> None:
    connection = getattr(transaction, "sync_connection", transaction)  # a session begins by itself
    if connection is None or getattr(connection, "closed", False):
        raise EnqueueError(
            f"session is an {type(transaction).__name__} that is not open: write `async with engine.begin() as "
            "connection:` and pass that"
        )


def refuse_outside_greenlet(engine: Engine, session: Any) -> None:
    """The Session or Connection inside of an asynchronous one works where SQLAlchemy can await, within `run_sync`.

    Raises:
        EnqueueError: it is one, and this is no such place.
    """
    if not engine.dialect.is_async:
        return
    current = sys.modules["greenlet"].getcurrent()
    if not getattr(current, "__sqlalchemy_greenlet_provider__", False):
        name = _public_call()[1]
        raise EnqueueError(
            f"session is the {type(session).__name__} inside of an asynchronous one, and {name} cannot wait for it: "
            f"await {name}_async(…, session=…) with the asynchronous one"
        )


def async_session_of(session: Any) -> AsyncSession | AsyncConnection | None:
    """The asynchronous session or connection that this is or stands for; None of anything else."""
    asynchronous: Any = sys.modules.get("sqlalchemy.ext.asyncio")  # not loaded: no one has made such a session
    if asynchronous is None:
        return None
    if isinstance(session, asynchronous.async_scoped_session):
        session = session()
    is_one = isinstance(session, asynchronous.AsyncSession | asynchronous.AsyncConnection)
    return session if is_one else None


def refuse_async(session: Any) -> None:
    """Name the awaitable form of the call that was given an asynchronous session.

    Raises:
        EnqueueError: it is one.
    """
    if async_session_of(session) is None:
        return
    package, name = _public_call()
    if hasattr(package, f"{name}_async"):
        cure = f"await {name}_async(…, session=session)"
    else:
        cure = f"await session.run_sync(lambda s: {name}(…, session=s))"
    raise EnqueueError(f"session is an {type(session).__name__}, which {name} cannot wait for: {cure}")


def _public_call() -> tuple[ModuleType | None, str]:
    """The package and the function of ours that the app has called."""
    frame: FrameType | None = sys._getframe(1)
    package, name = "", ""
    while frame is not None and (module := str(frame.f_globals.get("__name__"))).startswith(_INSIDE):
        if not module.startswith(("contextlib", "effects.kit.arguments")):
            package, name = module.partition(".")[0], frame.f_code.co_name
        frame = frame.f_back
    return sys.modules.get(package), name


def _is_sqlite(transaction: AsyncSession | AsyncConnection) -> bool:
    session = getattr(transaction, "sync_session", None)
    try:
        bind: Any = transaction if session is None else session.get_bind()
    except UnboundExecutionError:  # it has binds by class; SQLite's would have to be one of many
        return False
    return bool(bind.dialect.name == "sqlite")


async def _to_its_end(call: Coroutine[Any, Any, Result]) -> Result:
    running = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):  # of whoever cancels once more; it is raised in the end
                await asyncio.wait([running])
        raise


class CallSite(NamedTuple):
    """A line of the app, with what `warnings` needs to show it once."""

    owner: Owner
    file: str
    line: int
    module: str
    registry: dict[Any, Any]


def current_owner() -> Owner:
    """The thread or task on whose behalf this is called: it, and the task where the thread runs one."""
    announced = _announced.get()
    if announced is not None:
        return announced.owner
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), None if task is None else id(task)


def call_site() -> CallSite:
    """The innermost frame that is the app's."""
    announced = _announced.get()
    if announced is not None:
        return announced
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and _name(frame).startswith(_INSIDE_A_CALL):
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    return CallSite(current_owner(), frame.f_code.co_filename, frame.f_lineno, _name(frame), registry)


@contextmanager
def calling_from_here() -> Iterator[None]:
    """Let a call that is made in another thread count as one of this thread or task, and of this line."""
    token = _announced.set(call_site())
    try:
        yield
    finally:
        _announced.reset(token)


def _name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
