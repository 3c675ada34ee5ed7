"""Whether the installed files of the package `effects` are our own.

The name `effects` on the public package index belongs to another project, whose distribution writes into the same
folder. Installed after ours it replaces `effects/__init__.py`; removed again it deletes that file.
"""

from __future__ import annotations

from importlib import metadata

DISTRIBUTION = "effects-toolkit"
MENDED_BY = f"run `pip uninstall effects {DISTRIBUTION}`, then install {DISTRIBUTION} again"


def foreign_distribution() -> str | None:
    """Name and version of a distribution `effects` that has files in our folder; None if there is none."""
    for distribution in metadata.distributions(name="effects"):
        if any(file.parts[0] == "effects" for file in distribution.files or ()):
            return f"effects {distribution.version}"
    return None


def why_broken(package: object) -> str | None:
    """Say why the package `effects` cannot be used, and how to mend it; None if its files are our own.

    Args:
        package: the module that `import effects` gave, or None if that failed.
    """
    if "Effects" in getattr(package, "__all__", ()):
        return None
    if (foreign := foreign_distribution()) is not None:
        return f"the distribution {foreign} is another project, and has overwritten our files: {MENDED_BY}"
    if package is not None:
        return f"files of {DISTRIBUTION} are missing or are another project's: {MENDED_BY}"
    return None
