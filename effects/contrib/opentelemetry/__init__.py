"""OpenTelemetry: spans and metrics of jobs, by its conventions for messaging. The extra `effects-toolkit[otel]`.

    from effects.contrib.opentelemetry import instrument

    instrument(app)

The app brings the SDK and its exporter. Without this call nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

from effects.contrib.opentelemetry.instrumentation import instrument

__all__ = ["instrument"]
