"""What reports keep of one Effects: settings, definitions and the databases that they read from."""

from __future__ import annotations

from effects import Effects
from effects_reports.definitions.registry import ReportRegistry
from effects_reports.settings import ReportSettings


class ReportState:
    """Of one Effects; made once, when first needed.

    Raises:
        DefinitionInvalid: a definition is wrong, two have one name, or one reads from an engine that is not set.
    """

    def __init__(self, app: Effects) -> None:
        self.settings: ReportSettings = app.packages["reports"]
        self.bucket_networks = self.settings.bucket_networks()
        self.registry = ReportRegistry(app, self.settings)


def state_of(app: Effects) -> ReportState:
    """The state of reports in this Effects."""
    return app.state(ReportState)
