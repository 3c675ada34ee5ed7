"""Settings of installed packages. Each offers a frozen dataclass by an entry point `effects.settings`, under its name.

    Effects(templates="emails", email_from="Shop <hello@shop.example>")

An option that is no setting of the core is looked for among the fields of those classes; the core knows none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import entry_points
from typing import Any

from effects.errors import ConfigurationError
from effects.settings import Settings

GROUP = "effects.settings"


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options that are settings of the core, and the others."""
    own = {field.name for field in fields(Settings)}
    mine = {name: value for name, value in options.items() if name in own}
    return mine, {name: value for name, value in options.items() if name not in own}


def package_settings(environ: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of each installed package, by its name.

    Args:
        environ: where each class's `from_environment(environ, **options)` looks for what is not among the options.

    Raises:
        ConfigurationError: a setting is wrong, or an option belongs to none of them; names it.
    """
    kinds = {entry.name: entry.load() for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}
    theirs = {name: {field.name for field in fields(kind)} for name, kind in kinds.items()}
    known = {field.name for field in fields(Settings)}.union(*theirs.values())
    for option in options:
        if option not in known:
            raise ConfigurationError(f"Effects has no option {option!r} (known: {', '.join(sorted(known))})")
    return {
        name: kind.from_environment(environ, **{one: options[one] for one in theirs[name] if one in options})
        for name, kind in kinds.items()
    }
