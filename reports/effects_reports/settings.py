"""What `Effects(…)` takes for reports: the definitions, and the databases that they read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from effects import ConfigurationError
from effects.extend.arguments import arguments, optional, require
from effects.extend.http import Private, private_networks
from effects.extend.jobs import ModulesNamed, PackageSettings
from effects_reports.definitions.definition import ReportDefinition
from effects_reports.source.replica import Replica

_VARIABLES = ("EFFECTS_BUCKET_PRIVATE_NETWORKS", "EFFECTS_REPORT_MEMORY")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings(PackageSettings):
    """The reports of an app, which are code, and what an operator sets about them.

    Args:
        reports: the definitions, from `@report`.
        report_engines: other databases by the names that definitions give as `engine`: SQLAlchemy engines, which stay
            yours to close, or URLs; or a `Replica` of the app's database, whose lag is then checked.
        bucket_private_networks: EFFECTS_BUCKET_PRIVATE_NETWORKS, comma-separated networks, such as `10.1.0.0/16`, whose
            buckets files may be delivered into although they are private. Default none.
        report_memory: EFFECTS_REPORT_MEMORY, MiB that the chunks which one process makes at a time may take together,
            16 to 1,048,576. Default 200. One chunk is made whatever it takes.

    Raises:
        ConfigurationError: names the variable and what it may hold.
    """

    reports: tuple[ReportDefinition, ...] = ()
    report_engines: Mapping[str, Engine | str | Replica] = field(default_factory=dict, repr=False)
    bucket_private_networks: str = ""
    report_memory: int = 200

    def __post_init__(self) -> None:
        super(ReportSettings, self).__post_init__()
        require("EFFECTS_REPORT_MEMORY", self.report_memory, arguments.whole(16, 1_048_576), ConfigurationError)
        self.bucket_networks()

    def bucket_networks(self) -> Private:
        """The private networks that buckets may be in."""
        return private_networks(self.bucket_private_networks, "EFFECTS_BUCKET_PRIVATE_NETWORKS")

    @classmethod
    def declared(cls, modules: ModulesNamed, folders: Sequence[Path]) -> Mapping[str, Any]:
        """The definitions in each `reports.py`; one that is imported into another module counts once."""
        definitions = {
            id(value): value for module in modules("reports") for value in vars(module).values()
            if isinstance(value, ReportDefinition)
        }  # fmt: skip
        return {"reports": tuple(definitions.values())} if definitions else {}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], **overrides: Any) -> ReportSettings:
        """The given settings, and the environment's of those that are no code; None means the default."""
        require("reports", overrides.get("reports"), optional(arguments.listed), ConfigurationError)
        require("report_engines", overrides.get("report_engines"), optional(arguments.mapping), ConfigurationError)
        code = {
            "reports": tuple(overrides.get("reports") or ()),
            "report_engines": overrides.get("report_engines") or {},
        }
        own = {name: environ[name] for name in _VARIABLES if name in environ}
        return super(ReportSettings, cls).from_environment(own, **{**overrides, **code})
