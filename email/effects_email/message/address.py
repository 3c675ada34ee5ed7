"""E-mail addresses: taken apart once, at the call. What comes later works with `Address`, never with header text.

No address is stored in clear: rows have its digest, which is that of its normal form.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import TypeAlias

from effects import Effects
from effects.extend.arguments import arguments, require
from effects.extend.process import lazy
from effects.extend.text import described, without_unsafe
from effects_email.errors import AddressInvalid
from effects_email.message.source import Address

with lazy.modules(__name__):
    import email_validator
    import idna

NAME_CHARS_MAX = 200
SPEC_CHARS_MAX = 1000
MAILBOX_CHARS_MAX = 2 * SPEC_CHARS_MAX  # with a name, each of whose characters may be escaped
Recipient: TypeAlias = "str | Address"
_QUOTED = re.compile(r'"(?P<text>(?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ONLY_QUOTED = '"<>@:;'  # in a name without quotes: these part addresses (RFC 5322, 3.4), and one of them would be lost
# Names of networks that the Internet does not know: reserved for that, and delivered to by relays of such networks.
# `localhost` is not among them: whoever signs up as root@localhost would have the relay write to its own host's users.
_LOCALHOST = re.compile(r"[@.](?:localhost|localhost\.localdomain)\.?\Z")
_SEVERAL = re.compile(r"@[^@,;]*[,;][^@]*@")
_WITHOUT_BRACKETS = re.compile(r"\S.* [^\s@]+@[^\s@]+")
_PRIVATE = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.){1,8}(?:local|internal|lan|home\.arpa)")


def parse_address(spec: str, name: str = "", *, where: str = "the address") -> Address:
    """One address, checked by syntax only: no name server is asked.

    The domain becomes an A-label (IDNA 2008) in lower case. A local part beyond ASCII is kept; it needs a transport
    that offers SMTPUTF8 (RFC 6531). Quoted local parts and addresses at IP literals are refused.

    Args:
        spec: the address: `ann@example.com`.
        name: shown beside the address, at most 200 characters; line breaks and control characters become spaces.
        where: what the error calls it.

    Raises:
        AddressInvalid: it is malformed, or the name is too long or not a text.
    """
    if not isinstance(spec, str):
        raise AddressInvalid(f"{where} is {described(spec)}; give a text such as 'ann@example.com', or an Address")
    _check_length(spec, SPEC_CHARS_MAX, where)
    local, domain = _parsed(spec, where)
    return Address(local=local, domain=domain, name=display_name(name, where))


def parse_mailbox(text: str, *, where: str) -> Address:
    """`Shop <hello@shop.example>`, `"Shop: Berlin" <hello@shop.example>` or a bare address (RFC 5322, 3.4).

    Raises:
        AddressInvalid: it has another form, or holds more than one address.
    """
    if isinstance(text, str):  # from a form, perhaps: what follows looks at it more than once
        _check_length(text, MAILBOX_CHARS_MAX, where)
    mailbox = text.strip(" ") if isinstance(text, str) else text
    if not isinstance(mailbox, str) or not mailbox.endswith(">"):
        return parse_address(mailbox, where=where)
    if mailbox.count("<") > 1 and _SEVERAL.search(mailbox):
        raise AddressInvalid(f"{where} is no e-mail address: it holds several; give one, or a list where that is taken")
    name, _, spec = mailbox[:-1].rpartition("<")
    return parse_address(spec.strip(" "), _unquoted(name.strip(" "), where), where=where)


def _check_length(text: str, chars_max: int, where: str) -> None:
    if len(text) > chars_max:
        raise AddressInvalid(f"{where} is no e-mail address: it has {len(text)} characters, more than {chars_max}")


def _unquoted(name: str, where: str) -> str:
    if quoted := _QUOTED.fullmatch(name):
        return _ESCAPED.sub(r"\1", quoted["text"])
    if any(letter in _ONLY_QUOTED for letter in name):
        raise AddressInvalid(
            f"{where} is no e-mail address: give one, as Ann <ann@example.com>; a name that has one of {_ONLY_QUOTED} "
            'needs double quotes, as "Ann: sales" <ann@example.com>'
        )
    return name


def recipient(address: Recipient, *, where: str) -> Address:
    """What a caller gave as an address: a text, with a name or without, or an Address.

    Raises:
        AddressInvalid: it is malformed.
    """
    if isinstance(address, Address):  # anybody can make one: it is checked like a text
        for part in ("local", "domain"):
            require(f"{where}: its {part}", getattr(address, part), arguments.text, AddressInvalid)
        return parse_address(address.spec, address.name, where=where)
    return parse_mailbox(address, where=where)


def spec_of(address: Recipient, *, where: str = "the address") -> str:
    """The address in `Ann <ann@example.com>`, or of an Address; any other text as it is, valid or not.

    Raises:
        AddressInvalid: it has a name and is malformed.
    """
    if isinstance(address, Address):
        return address.spec
    require(where, address, arguments.printable(SPEC_CHARS_MAX), AddressInvalid)
    return parse_mailbox(address, where=where).spec if address.rstrip(" ").endswith(">") else address


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can carry it: no half of a surrogate pair."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def one_line(text: str) -> str:
    """The text with every run of control characters and white space as one space, and none at its ends."""
    return " ".join(without_unsafe(text).split())


def display_name(name: str, where: str) -> str:
    """A name that is safe in a header.

    Raises:
        AddressInvalid: it is too long, or no text that UTF-8 can carry.
    """
    if not name:
        return ""
    require(f"{where}: the name", name, arguments.text, AddressInvalid)
    clean = one_line(name)
    if len(clean) > NAME_CHARS_MAX:
        raise AddressInvalid(f"{where}: the name has {len(clean)} characters and the limit is {NAME_CHARS_MAX}")
    if not is_utf8(name):
        raise AddressInvalid(f"{where}: the name holds half of a surrogate pair, which UTF-8 cannot carry")
    return clean


@lru_cache(maxsize=1024)
def _parts(spec: str) -> tuple[str, str]:
    local, _, domain = spec.rpartition("@")
    private = domain.lower() if _PRIVATE.fullmatch(domain.lower()) else None
    validated = email_validator.validate_email(
        f"{local}@example.com" if private else spec,
        check_deliverability=False,
        allow_quoted_local=False,
        test_environment=True,
        strict=True,
    )
    return validated.local_part, private or (validated.ascii_domain or "").lower()


def _parsed(spec: str, where: str) -> tuple[str, str]:
    if _LOCALHOST.search(spec.lower()):
        raise AddressInvalid(f"{where} is at localhost, the mail server's own host; give an address of a domain")
    if spec.count("@") > 1 and _SEVERAL.search(spec):
        raise AddressInvalid(f"{where} is no e-mail address: it holds several; give one, or a list where that is taken")
    if _WITHOUT_BRACKETS.fullmatch(spec):
        raise AddressInvalid(f"{where} is no e-mail address: with a name it is written Ann <ann@example.com>")
    try:
        local, domain = _parts(spec)
    except email_validator.EmailNotValidError as error:
        # Up to the colon: after it come parts of the value.
        raise AddressInvalid(f"{where} is no e-mail address: {str(error).partition(':')[0].rstrip('.')}") from None
    except UnicodeError:
        raise AddressInvalid(f"{where} is no e-mail address: its letters cannot be encoded") from None
    return local, domain


# -- what a row keeps of an address ---------------------------------------------------------------------------------


def normal_form(address: str) -> str:
    """The form in which two spellings of an address are the same text.

    The domain as an A-label in lower case (IDNA 2008, mapped by UTS 46). The local part in lower case and NFC: RFC 5321
    lets a host tell `Ann` from `ann`, none in use does, and to write to someone who asked not to be written to is the
    worse mistake. Takes any text of a provider: invalid addresses stay as they are, in lower case.
    """
    local, at, domain = unicodedata.normalize("NFC", address.strip()).rpartition("@")
    return f"{local.lower()}{at}{_ascii(domain)}"


def _ascii(domain: str) -> str:
    plain = domain.strip().rstrip(".").lower()
    if plain.isascii():
        return plain
    try:
        return idna.encode(plain, uts46=True).decode()
    except (idna.IDNAError, UnicodeError):
        return plain


def address_digest(app: Effects, address: str) -> str:
    """What an address is stored and looked up as: an HMAC where EFFECTS_KEYS has a `digest` key, else SHA-256."""
    return app.keys.digest(_named(address))


def address_digests(app: Effects, address: str) -> tuple[str, ...]:
    """Every form under which an address may be stored: rows of the time before there was a `digest` key stay valid."""
    return tuple(dict.fromkeys((address_digest(app, address), app.keys.digest(_named(address), like="sha256:"))))


def _named(address: str) -> str:
    # The name parts this digest from those of payloads under the same key.
    return f"email address\0{normal_form(address)}"
