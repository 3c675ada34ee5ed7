"""Arguments of public calls: checked, and what is wrong with one in words.

Names without their own docstring:

    DAY_SECONDS    seconds of a day
    ObjectData     what becomes a JSON object: a mapping, a dataclass, a msgspec struct or a pydantic model
"""

from __future__ import annotations

from effects.kit import lazy

with lazy.names(__name__):
    from effects.kit import arguments as arguments
    from effects.kit.arguments import aware as aware
    from effects.kit.arguments import build_each as build_each
    from effects.kit.arguments import check_arguments as check_arguments
    from effects.kit.arguments import each_of as each_of
    from effects.kit.arguments import optional as optional
    from effects.kit.arguments import printable as printable
    from effects.kit.arguments import require as require
    from effects.kit.arguments import shown as shown
    from effects.kit.plain_values import ObjectData as ObjectData
    from effects.kit.plain_values import require_json as require_json
    from effects.kit.plain_values import to_plain as to_plain
    from effects.retry import DAY_SECONDS as DAY_SECONDS
