"""Tags and metadata: under what a provider counts a message and reports its events.

One form that every provider takes, because a message may go by another one than it was written for. By SMTP and into a
maildir they are not sent: there is no place for them.

| provider | tags | metadata |
|---|---|---|
| Resend, Amazon SES | tags `tag`, `tag_2`, `tag_3` with these values | tags of these names |
| Postmark | the first is the tag, others are metadata `tag_2`, `tag_3` | metadata |
| SendGrid | categories | custom arguments |
| Mailgun | tags | variables |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from effects.extend import described
from effects_email.errors import EmailInvalid
from effects_email.message.source import MessageSource

TAGS_MAX = 3
PAIRS_MAX = 5
_TAG = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAME = re.compile(r"(?!effects|tag)[a-z][a-z0-9_]{0,18}")
_VALUE = re.compile(r"[A-Za-z0-9_-]{1,80}")


def tags_of(tags: Sequence[str]) -> tuple[str, ...]:
    """The tags, checked.

    Raises:
        EmailInvalid: names the tag by its number.
    """
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise EmailInvalid(f"tags is {described(tags)}; give a list of texts")
    if len(tags) > TAGS_MAX:
        raise EmailInvalid(f"tags has {len(tags)}; a message has at most {TAGS_MAX}")
    for number, tag in enumerate(tags, 1):
        if not isinstance(tag, str) or not _TAG.fullmatch(tag):
            raise EmailInvalid(
                f"tag {number} is no text of 1 to 64 letters, digits, - and _: what every provider takes"
            )
    return tuple(dict.fromkeys(tags))


def metadata_of(metadata: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """The pairs in the order of their names, checked.

    Raises:
        EmailInvalid: names the pair.
    """
    if metadata is None:
        return ()
    if not isinstance(metadata, Mapping):
        raise EmailInvalid(f"metadata is {described(metadata)}; give a dict of texts")
    if len(metadata) > PAIRS_MAX:
        raise EmailInvalid(f"metadata has {len(metadata)} pairs; a message has at most {PAIRS_MAX}")
    for number, (name, value) in enumerate(metadata.items(), 1):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise EmailInvalid(
                f"metadata, pair {number}: the name is 1 to 19 small letters, digits and _, begins with a letter, and "
                "not with effects or tag"
            )
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise EmailInvalid(
                f"metadata, {name}: the value is no text of 1 to 80 letters, digits, - and _: what every provider takes"
            )
    return tuple(sorted(metadata.items()))


def labels(source: MessageSource) -> dict[str, str]:
    """All of them as pairs, for a provider that knows nothing else."""
    tags = {"tag" if number == 1 else f"tag_{number}": tag for number, tag in enumerate(source.tags, 1)}
    return {**tags, **dict(source.metadata)}
