"""Which Effects a call means: the one it was given, else the process's own."""

from __future__ import annotations

import threading

from effects.app import Effects
from effects.errors import EnqueueError

_default: Effects | None = None
_default_lock = threading.Lock()


def app_of(effects: Effects | None) -> Effects:
    """The one that a call was given, else the process's.

    Raises:
        EnqueueError: it is no Effects.
    """
    if effects is not None and not isinstance(effects, Effects):
        raise EnqueueError(f"effects is a {type(effects).__name__}; give an Effects, or none for the process's own")
    return effects or default()


def default() -> Effects:
    """The process's Effects: the one given to `set_default`, else one built from the environment now."""
    global _default  # noqa: PLW0603 - the one global there is
    with _default_lock:
        if _default is None:
            _default = Effects()
        return _default


def set_default(effects: Effects | None) -> None:
    """Make this the process's Effects; None forgets it."""
    replace_default(effects)


def replace_default(effects: Effects | None) -> Effects | None:
    """Set the default and return the previous one, or None."""
    global _default
    with _default_lock:
        before, _default = _default, effects
        return before
