"""Text fit to be stored, shown or logged, and times.

Names without their own docstring:

    HIDDEN    what stands in place of a redacted value
    UNSAFE    pattern of the characters that no terminal or header may get
"""

from __future__ import annotations

from effects.kit import lazy

with lazy.names(__name__):
    from effects.kit.logs import error_places as error_places
    from effects.kit.logs import error_reason as error_reason
    from effects.kit.moments import exact_moment as exact_moment
    from effects.kit.moments import moment as moment
    from effects.kit.moments import moment_or_none as moment_or_none
    from effects.kit.moments import phases_ms as phases_ms
    from effects.kit.text.redact import HIDDEN as HIDDEN
    from effects.kit.text.redact import redact as redact
    from effects.kit.text.redact import repr_without as repr_without
    from effects.kit.text.redact import why_unfit as why_unfit
    from effects.kit.text.scrub import clean_text as clean_text
    from effects.kit.text.unsafe import UNSAFE as UNSAFE
    from effects.kit.text.unsafe import escape_unprintable as escape_unprintable
    from effects.kit.text.unsafe import is_printable as is_printable
    from effects.kit.text.unsafe import nearest as nearest
    from effects.kit.text.unsafe import whole_number as whole_number
    from effects.kit.text.unsafe import without_unsafe as without_unsafe
    from effects.kit.text.wording import described as described
    from effects.model.schedules import fill_placeholders as fill_placeholders
    from effects.model.schedules import why_unfilled as why_unfilled
