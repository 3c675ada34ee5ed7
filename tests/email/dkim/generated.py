"""Messages of every shape that this package writes, made from a number: the same for the same number."""

from __future__ import annotations

import hashlib
import random
from datetime import UTC, datetime, timedelta

from effects_email.message.mime import build, check_header
from effects_email.message.source import Address, Attachment, MessageSource

_WORDS = ["Rechnung", "größer", "注文", "a\tb", "  two", "x" * 90, ".", "From here", "=3D", "e-mail", "\u00a0", "✓"]
_ONE_CLICK = (
    ("List-Unsubscribe", "<https://shop.example/unsubscribe/?t=" + "a" * 200 + ">"),
    ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
)


def message(number: int, domain: str = "shop.example") -> bytes:
    """An unsigned message. Every second one carries the one-click headers."""
    return build(*source(number, domain))


def source(number: int, domain: str = "shop.example") -> tuple[MessageSource, dict[str, bytes]]:
    chance = random.Random(number)
    files = {hashlib.sha256(file).hexdigest(): file for file in (chance.randbytes(chance.randrange(1, 3000)),)}
    attachments = [
        Attachment(
            url="file:///x", filename=chance.choice(["a.pdf", "größe.png"]), content_type="application/pdf",
            size_bytes=len(file), sha256=sha256, content_id=chance.choice([None, "logo@shop.example"]),
        )
        for sha256, file in files.items()
        if chance.random() < 0.3
    ]  # fmt: skip
    own = [("X-Campaign", chance.choice(["spring  sale", "Frühling", "y" * 300])), ("References", "<1@a> <2@b>")]
    return MessageSource(
        message_id=f"{number}.{chance.randrange(10**9)}@{domain}",
        date=datetime(2024, 11, 1, tzinfo=UTC) + timedelta(minutes=number),
        sender=Address("hello", domain, chance.choice(["", "Shop", "Lädchen, das", 'The "Shop"'])),
        to=(Address(f"user{number}", "example.org", chance.choice(["", "Ann  B."])),),
        cc=tuple(Address(f"cc{turn}", "example.org", "C" * turn) for turn in range(chance.randrange(3))),
        reply_to=(Address("desk", domain),) if chance.random() < 0.5 else (),
        subject=" ".join(chance.choices([*_WORDS[:3], "e-mail", "  two "], k=chance.randrange(1, 12))).strip(),
        text=_text(chance),
        html=f"<p>{_text(chance)}</p>" if chance.random() < 0.5 else None,
        headers=(*(_ONE_CLICK if number % 2 == 0 else ()), *(check_header(*field) for field in own)),
        attachments=tuple(attachments),
    ), files


def _text(chance: random.Random) -> str:
    lines = [" ".join(chance.choices(_WORDS, k=chance.randrange(8))) for _ in range(chance.randrange(1, 12))]
    return chance.choice(["\n", "\r\n"]).join(lines) + chance.choice(["", "\n", "\n\n\n", "  \n \n"])
