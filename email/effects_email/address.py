"""E-mail addresses: taken apart once, at the call. What comes later works with `Address`, never with header text."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeAlias

from email_validator import EmailNotValidError, validate_email

from effects_email.errors import AddressInvalid
from effects_email.parts import Address

NAME_CHARS_MAX = 200
Recipient: TypeAlias = "str | Address"
_MAILBOX = re.compile(r'\s*(?P<name>"[^"\\<>]*"|[^"<>]*?)\s*<(?P<spec>[^<>]+)>\s*')
# Names of networks that the Internet does not know: reserved for that, and delivered to by relays of such networks.
_PRIVATE = re.compile(
    r"(?:localhost|(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.){1,8}(?:local|localhost|internal|lan|home\.arpa))"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def parse_address(spec: str, name: str = "", *, where: str = "the address") -> Address:
    """One address, checked by syntax only: no name server is asked.

    The domain becomes an A-label (IDNA 2008) in lower case. A local part beyond ASCII is kept; it needs a transport
    that offers SMTPUTF8 (RFC 6531). Quoted local parts and addresses at IP literals are refused.

    Args:
        name: shown beside the address, at most 200 characters; line breaks and control characters become spaces.
        where: what the error calls it.

    Raises:
        AddressInvalid: it is none, or the name is too long or no text.
    """
    if not isinstance(spec, str):
        raise AddressInvalid(
            f"{where} is a {type(spec).__name__}; give a text such as 'ann@example.com', or an Address"
        )
    local, domain = _parsed(spec, where)
    return Address(local=local, domain=domain, name=display_name(name, where))


def parse_mailbox(text: str, *, where: str) -> Address:
    """`Shop <hello@shop.example>` or a bare address, as an operator writes it in a setting.

    Raises:
        AddressInvalid: it is neither.
    """
    found = _MAILBOX.fullmatch(text)
    if found is None:
        return parse_address(text.strip(), where=where)
    return parse_address(found["spec"].strip(), found["name"].strip('"'), where=where)


def recipient(given: Recipient, *, where: str) -> Address:
    """What a caller gave as an address.

    Raises:
        AddressInvalid: it is none.
    """
    if isinstance(given, Address):  # anybody can make one: it is checked like a text
        return parse_address(given.spec, given.name, where=where)
    return parse_address(given, where=where)


def needs_utf8(one: Address) -> bool:
    """Whether its envelope needs SMTPUTF8."""
    return not one.local.isascii()


def one_line(text: str) -> str:
    """The text with every run of control characters and white space as one space, and none at its ends."""
    return " ".join(_CONTROL.sub(" ", text).split())


def display_name(name: str, where: str) -> str:
    """A name that may stand in a header.

    Raises:
        AddressInvalid: it is too long, or no text that UTF-8 can carry.
    """
    if not name:
        return ""
    clean = one_line(name)
    if len(clean) > NAME_CHARS_MAX:
        raise AddressInvalid(f"{where}: the name has {len(clean)} characters and the limit is {NAME_CHARS_MAX}")
    if any("\ud800" <= letter <= "\udfff" for letter in clean):
        raise AddressInvalid(f"{where}: the name holds half of a surrogate pair, which UTF-8 cannot carry")
    return clean


@lru_cache(maxsize=1024)
def _parts(spec: str) -> tuple[str, str]:
    local, _, domain = spec.rpartition("@")
    private = domain.lower() if _PRIVATE.fullmatch(domain.lower()) else None
    found = validate_email(
        f"{local}@example.com" if private else spec,
        check_deliverability=False,
        allow_quoted_local=False,
        test_environment=True,
        strict=True,
    )
    return found.local_part, private or (found.ascii_domain or "").lower()


def _parsed(spec: str, where: str) -> tuple[str, str]:
    try:
        local, domain = _parts(spec)
    except EmailNotValidError as error:
        # Up to the colon: behind it stand pieces of what was given.
        raise AddressInvalid(f"{where} is no e-mail address: {str(error).partition(':')[0].rstrip('.')}") from None
    except UnicodeError:
        raise AddressInvalid(f"{where} is no e-mail address: its letters cannot be encoded") from None
    return local, domain
