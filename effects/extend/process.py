"""The process: lazy imports, crash points, exit codes, logs.

Names without their own docstring:

    VERSION    the version of this release of effects
"""

from __future__ import annotations

from effects.kit import lazy as lazy

with lazy.names(__name__):
    from effects.errors import code_of as code_of
    from effects.kit.crashpoints import declare as declare
    from effects.kit.crashpoints import point as point
    from effects.kit.exit_codes import ExitCode as ExitCode
    from effects.kit.logs import RateLimitedLogger as RateLimitedLogger
    from effects.kit.logs import own_logger as own_logger
    from effects.kit.process import Newest as Newest
    from effects.kit.process import long_call as long_call
    from effects.version import VERSION as VERSION
