"""Classification of a mail server's reply by its codes, and the form of a row: the reply table, as data.

Rows are tried from the top and the first that fits holds: special ones stand above general ones, and all rows of
`reply_words` above these. `topics` has the consequences of a topic.
"""

from __future__ import annotations

import msgspec

from effects_email.transport.base import Stage

CONNECTING: tuple[Stage, ...] = ("connect", "tls", "banner", "ehlo", "starttls")
ENVELOPE: tuple[Stage, ...] = ("mail", "rcpt", "data")
AFTER: tuple[Stage, ...] = ("body", "dot")
MESSAGE: tuple[Stage, ...] = (*ENVELOPE, *AFTER)
NAMED: tuple[Stage, ...] = ("rcpt", "data", *AFTER)  # a recipient has been named


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row.

    `codes`: `421`, `4xx` or `500-504`, separated by blanks. `enhanced`: `5.1.1`, `x.7.*` (x: the reply's class), blanks
    between; empty: whatever there is; `none`: a reply without one. `says`: regular expressions for the text, of which
    one must be found, in any case. `sources`: where such replies are documented or were seen.
    """

    topic: str
    stages: tuple[Stage, ...]
    codes: str = "4xx 5xx"
    enhanced: str = ""
    says: tuple[str, ...] = ()
    sources: str = ""


CODES: tuple[Row, ...] = (
    # -- before there is a message ---------------------------------------------------------------------------
    Row(topic="no_session", stages=("banner", "ehlo")),
    Row(topic="no_tls", stages=("starttls",)),
    Row(topic="new_password", stages=("auth",), codes="432"),
    Row(topic="login", stages=("auth",)),
    Row(topic="misfit", stages=(*CONNECTING, "auth"), codes="2xx 3xx"),
    # -- at any stage of a message ---------------------------------------------------------------------------
    Row(topic="closing", stages=MESSAGE, codes="421"),
    Row(topic="credentials", stages=MESSAGE, codes="525 530 534 535 538"),
    Row(topic="misrouted", stages=MESSAGE, codes="521", sources="RFC 7504: the host takes no mail at all"),
    Row(topic="too_large", stages=MESSAGE, codes="5xx", enhanced="x.2.3 x.3.4"),
    Row(topic="too_many_recipients", stages=("rcpt",), codes="452 552", enhanced="x.5.3"),
    Row(topic="rate", stages=AFTER, codes="454", enhanced="x.7.*"),
    # -- MAIL ------------------------------------------------------------------------------------------------
    Row(topic="busy", stages=("mail",), codes="4xx"),
    Row(topic="too_large", stages=("mail",), codes="552"),
    Row(topic="sender", stages=("mail",), codes="501", enhanced="x.1.7 x.1.8"),
    Row(topic="protocol", stages=("mail", "rcpt"), codes="500 502-504 555"),
    Row(topic="protocol", stages=("mail",), codes="501"),
    Row(topic="sender", stages=("mail",), codes="5xx", sources="RFC 5321: no recipient has been named yet"),
    # -- RCPT, and what a server says of a recipient after it ----------------------------------------------------
    Row(topic="busy_mailbox", stages=NAMED, codes="450 451 452", enhanced="x.2.1",
        sources="Gmail SMTP errors and codes"),
    Row(topic="full_mailbox", stages=NAMED, enhanced="x.2.2"),
    Row(topic="full_server", stages=NAMED, enhanced="x.3.1"),
    Row(topic="sender", stages=NAMED, codes="5xx", enhanced="x.7.27"),
    Row(topic="moved", stages=NAMED, codes="5xx", enhanced="x.1.6"),
    Row(topic="unknown_address", stages=NAMED, codes="5xx", enhanced="x.1.1 x.1.2 x.1.3 x.1.10"),
    Row(topic="disabled_mailbox", stages=NAMED, codes="5xx", enhanced="x.2.1 x.7.17 x.7.18"),
    Row(topic="account", stages=NAMED, codes="5xx", enhanced="x.7.13",
        sources="IANA enhanced status codes: the account that has logged in is disabled"),
    Row(topic="unknown_address", stages=("rcpt",), codes="550", enhanced="x.5.0", says=("mailbox unavailable",),
        sources="Exchange Online NDR table: said of addresses at hotmail.com and outlook.com"),
    Row(topic="odd_address", stages=("rcpt",), codes="501"),
    Row(topic="busy", stages=AFTER, codes="4xx"),
    Row(topic="mailbox_refuses", stages=NAMED, codes="5xx", enhanced="x.2.*"),
    Row(topic="misrouted", stages=NAMED, codes="5xx", enhanced="x.3.* x.4.*"),
    Row(topic="protocol", stages=NAMED, codes="5xx", enhanced="x.5.*"),
    Row(topic="malformed", stages=NAMED, codes="5xx", enhanced="x.6.*"),
    Row(topic="closed_to_us", stages=NAMED, codes="5xx", enhanced="x.7.2", sources="IANA enhanced status codes"),
    Row(topic="policy", stages=NAMED, codes="5xx", enhanced="x.7.*"),
    Row(topic="asks_to_wait", stages=("rcpt",), codes="450 451"),
    Row(topic="busy", stages=("rcpt", "data"), codes="4xx"),
    Row(topic="moved", stages=("rcpt",), codes="551"),
    Row(topic="full_mailbox", stages=("rcpt",), codes="552", enhanced="none x.0.0"),
    Row(topic="policy", stages=("rcpt",), codes="554", enhanced="none x.0.0"),
    Row(topic="unnamed", stages=("rcpt",), codes="5xx"),
    Row(topic="too_large", stages=AFTER, codes="552"),
    Row(topic="refused", stages=("data", *AFTER), codes="5xx"),
)  # fmt: skip
