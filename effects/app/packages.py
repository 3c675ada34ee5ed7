"""Settings of installed packages. Each offers a PackageSettings by an entry point `effects.settings`, under its name.

    Effects(templates="emails", email_from="Shop <hello@shop.example>")

An option that is not a setting of the core is looked up among the fields of those classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from effects.errors import ConfigurationError
from effects.kit.importing import entry_points
from effects.kit.text.unsafe import nearest
from effects.settings import Settings, check_kinds, values_of

GROUP = "effects.settings"
ModulesNamed: TypeAlias = Callable[[str], Sequence[ModuleType]]
Own = TypeVar("Own", bound="PackageSettings")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSettings:
    """What an operator may set about one package: a frozen dataclass, checked when made, each field with a default.

    A field is an option of `Effects(…)` and an environment variable: EFFECTS_ and its name.
    """

    def __post_init__(self) -> None:
        check_kinds(self)

    @classmethod
    def from_environment(cls: type[Own], environ: Mapping[str, str], **overrides: Any) -> Own:
        """The environment's settings, with those of the caller (and not None) on top.

        Raises:
            ConfigurationError: names the variable and what it may hold.
        """
        return cls(**values_of(cls, environ, overrides))

    @classmethod
    def declared(cls, modules: ModulesNamed, folders: Sequence[Path]) -> Mapping[str, Any]:
        """The options that a framework's project gives by its code and folders. Default: none.

        Args:
            modules: finds the modules of a name in its apps, and imports them.
            folders: of its apps, in the order in which they are installed.
        """
        return {}

    def risks(self) -> Mapping[str, str]:
        """What `effects doctor` warns of, with its advice. Default: nothing."""
        return {}


def declared_options(modules: ModulesNamed, folders: Sequence[Path]) -> dict[str, Any]:
    """What a framework's project declares for the installed packages, as options of `Effects(…)`."""
    options: dict[str, Any] = {}
    for entry in entry_points(GROUP):
        options.update(entry.load().declared(modules, folders))
    return options


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options that are settings of the core, and the others."""
    own = {field.name for field in fields(Settings)}
    taken = {name: value for name, value in options.items() if name in own}
    return taken, {name: value for name, value in options.items() if name not in own}


def package_settings(environ: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of each installed package, by its name.

    Args:
        environ: where each class's `from_environment(environ, **options)` looks for what is not among the options.

    Raises:
        ConfigurationError: a setting is wrong or an option is unknown; the message names it.
    """
    kinds = {entry.name: entry.load() for entry in entry_points(GROUP)}
    theirs = {name: {field.name for field in fields(kind)} for name, kind in kinds.items()}
    valid = {field.name for field in fields(Settings)}.union(*theirs.values())
    for option in options:
        if option not in valid:
            hint = nearest(option, valid)
            raise ConfigurationError(f"Effects has no option {option!r}{hint} (known: {', '.join(sorted(valid))})")
    return {
        name: kind.from_environment(
            environ, **{option: options[option] for option in theirs[name] if option in options}
        )
        for name, kind in kinds.items()
    }
