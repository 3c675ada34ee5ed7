"""OpenDKIM, which verifies files: an implementation of DKIM that has nothing in common with ours or with dkimpy."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support import needs

BATCH = 400  # files named by one command


def unverified(messages: Sequence[bytes], records: Mapping[str, str], folder: Path) -> list[int]:
    """The numbers of the messages whose newest signature does not hold.

    Args:
        records: the TXT records that the DNS has, by their names.
    """
    program = needs.program("opendkim")
    names, settings = folder / "dkim-records", folder / "opendkim.conf"
    names.write_text("".join(f"{name} {record}\n" for name, record in records.items()))
    settings.write_text(f"Mode v\nTestDNSData refile:{names}\n")
    files = [folder / f"{number}.eml" for number in range(len(messages))]
    for file, message in zip(files, messages, strict=True):
        file.write_bytes(re.sub(rb"\r?\n", b"\r\n", message))
    verified = ""
    for start in range(0, len(files), BATCH):
        batch = ",".join(map(str, files[start : start + BATCH]))
        ran = subprocess.run(
            [program, "-x", str(settings), "-t", batch, "-v"], capture_output=True, text=True, timeout=120, check=False
        )
        verified += ran.stdout
    held = set(re.findall(r"/(\d+)\.eml: verification \([^)]*\) succeeded", verified))
    return [number for number in range(len(messages)) if str(number) not in held]
