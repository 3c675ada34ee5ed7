"""What a mail server's reply can be about, and the verdict that follows: the first half of the reply table, as data.

A reply is first read for what it is about, by `reply_words` and `replies`. Only then does its basic code decide: 5xx
is final, 4xx is for now. A fault that is ours, the relay's or the server's is never held against a recipient.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from effects_email.transport.base import About, Kind, Suppress

GREYLIST_SECONDS = 300.0
LONG_SECONDS = 3600.0  # a mailbox or a disk does not empty in minutes
BUSY_SECONDS = 900.0
RATE_SECONDS = 60.0
QUOTA_SECONDS = 3600.0  # a quota of a rolling day gives way bit by bit


class Consequence(msgspec.Struct, frozen=True):
    """A verdict without its words. `after_seconds`: a floor. `suppress`: the address, at once or after repeats."""

    kind: Kind
    after_seconds: float | None = None
    suppress: Suppress | None = None


class Topic(msgspec.Struct, frozen=True):
    """One thing that a server may complain about. `final` follows a 5xx, `passing` a 4xx."""

    about: About
    reason: str
    final: Consequence
    passing: Consequence


_RETRY = Consequence("retry")
_LATER = Consequence("retry", GREYLIST_SECONDS)
_MESSAGE = Consequence("refused_message")
_CONFIG = Consequence("config")
_DOWN = Consequence("transport_down")
_RATE = Consequence("throttle", RATE_SECONDS)
_QUOTA = Consequence("throttle", QUOTA_SECONDS)
_HARD = Consequence("refused_recipient", suppress="hard")
_SOFT = Consequence("refused_recipient", suppress="soft")
_REFUSED = Consequence("refused_recipient")

TOPICS: Mapping[str, Topic] = {
    # -- one recipient ---------------------------------------------------------------------------------------
    "unknown_address": Topic("recipient", "the address does not exist", _HARD, _LATER),
    "disabled_mailbox": Topic("recipient", "the mailbox is disabled", _HARD, _LATER),
    "moved": Topic("recipient", "the address has moved away", _HARD, _LATER),
    "full_mailbox": Topic("recipient", "the mailbox is full", _SOFT, Consequence("retry", LONG_SECONDS)),
    "mailbox_refuses": Topic("recipient", "the mailbox takes no mail", _SOFT, _LATER),
    "closed_to_us": Topic("recipient", "the recipient takes mail of chosen senders only", _REFUSED, _LATER),
    "busy_mailbox": Topic(
        "recipient", "this recipient gets more mail than its server takes at present",
        Consequence("retry", LONG_SECONDS), Consequence("retry", BUSY_SECONDS),
    ),
    "odd_address": Topic("recipient", "the server takes no address of this form", _REFUSED, _LATER),
    "unnamed": Topic("recipient", "the address is refused without a reason", _SOFT, _LATER),
    # -- this message ----------------------------------------------------------------------------------------
    "too_large": Topic("message", "the message is too large", _MESSAGE, _RETRY),
    "content": Topic("message", "the server refuses the message's content", _MESSAGE, _RETRY),
    "malformed": Topic("message", "the server cannot carry a message of this form", _MESSAGE, _RETRY),
    "policy": Topic("message", "refused by policy, which does not concern the address", _MESSAGE, _LATER),
    "refused": Topic("message", "the server refuses the message", _MESSAGE, _RETRY),
    # -- our sender, our address, our account ----------------------------------------------------------------
    "sender": Topic("sender", "the server refuses our sender address", _CONFIG, _LATER),
    "unauthenticated": Topic("sender", "our mail does not pass SPF, DKIM or DMARC", _CONFIG, _LATER),
    "listed": Topic(
        "reputation", "our IP address or domain is on a list of bad senders",
        _CONFIG, Consequence("retry", BUSY_SECONDS),
    ),
    "bad_company": Topic(
        "reputation", "the server counts too many bad addresses in what we send",
        Consequence("retry", LONG_SECONDS), Consequence("retry", BUSY_SECONDS),
    ),
    "client": Topic("reputation", "the server refuses our IP address or the name that we give", _CONFIG, _LATER),
    "relay": Topic("account", "the server does not relay for us: credentials or its list of clients", _CONFIG, _CONFIG),
    "credentials": Topic("account", "the server asks for authentication or TLS", _CONFIG, _CONFIG),
    "account": Topic("account", "our account is blocked or may not send", _CONFIG, _CONFIG),
    "quota": Topic("account", "the quota of our account is used up", _QUOTA, _QUOTA),
    # -- our rate --------------------------------------------------------------------------------------------
    "rate": Topic("rate", "we send faster than the server allows", _QUOTA, _RATE),
    "deferred": Topic(
        "rate", "the recipient's provider defers mail from our address",
        Consequence("throttle", BUSY_SECONDS), Consequence("throttle", BUSY_SECONDS),
    ),
    # -- the server ------------------------------------------------------------------------------------------
    "greylisted": Topic("server", "the server asks a stranger to wait", _LATER, _LATER),
    "asks_to_wait": Topic("server", "the recipient's server asks to wait", _MESSAGE, _LATER),
    "too_many_recipients": Topic(
        "server", "too many recipients at once", Consequence("retry", 0.0), Consequence("retry", 0.0)
    ),
    "full_server": Topic("server", "the server's disk is full", _MESSAGE, Consequence("retry", LONG_SECONDS)),
    "misrouted": Topic("server", "the server cannot route or process the message", _MESSAGE, _RETRY),
    "busy": Topic("server", "the server takes no message at present", _MESSAGE, _RETRY),
    "protocol": Topic(
        "server", "the server does not understand a command: a fault of ours, or of the server", _MESSAGE, _RETRY
    ),
    "closing": Topic("server", "the server closes the session; nothing was taken", _MESSAGE, _RETRY),
    # -- before there is a message ---------------------------------------------------------------------------
    "no_session": Topic("server", "the server takes no session", _CONFIG, _DOWN),
    "no_tls": Topic("server", "the server refuses STARTTLS", _CONFIG, _DOWN),
    "login": Topic("account", "the server refuses our credentials", _CONFIG, _DOWN),
    "new_password": Topic("account", "the server asks for a new password", _CONFIG, _CONFIG),
    "misfit": Topic("server", "the server's answer does not fit the question", _DOWN, _DOWN),
}  # fmt: skip
