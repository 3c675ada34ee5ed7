"""Who looks at the dashboard, and what they may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from effects.arguments import flag, one_of, printable, require
from effects.errors import ConfigurationError
from effects.web.exchange import PageRequest

Role: TypeAlias = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
NAME_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Person:
    """A person that the guard admits.

    Args:
        name: who it is, in the audit log as `web:NAME`; 1 to 200 printable characters.
        role: `viewer` looks; `operator` acts on jobs, queues, limits and schedules, too; `admin` may also repeat an
            effect that is done. No default.
        personal: the capability to see what may be personal: addresses in stored texts, and kept texts of exceptions.
            Default no, whatever the role.

    Raises:
        ConfigurationError: the name or the role is not one.
    """

    name: str
    role: Role
    personal: bool = False

    def __post_init__(self) -> None:
        require("the name of a person", self.name, printable(NAME_CHARS_MAX), ConfigurationError)
        require("the role of a person", self.role, one_of(ROLES), ConfigurationError)
        require("personal", self.personal, flag, ConfigurationError)

    @property
    def actor(self) -> str:
        """How the audit log names this person."""
        return f"web:{self.name}"

    def may(self, role: Role, *, personal: bool = False) -> bool:
        """Whether this person has the role, or one that includes it, and the capability, where it is needed."""
        return ROLES.index(self.role) >= ROLES.index(role) and (self.personal or not personal)


Guard: TypeAlias = Callable[[PageRequest], Person | None]
