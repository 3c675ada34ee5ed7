"""The shop in which the mistakes are made: a folder, an app on a database, and `effects …` in this process."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from effects import Attempt, Effects, JobType, RetryPolicy, enqueue, set_default
from effects.cli.main import cli
from effects.keys.encryption import generate_key
from effects.operate.evidence import find_evidence
from effects.operate.sentences import sentence
from effects.store.migrations import migrate
from effects.worker import Worker
from tests.support.log_lines import unconfigured_logging
from tests.support.scripted import Scripted

KEYS = f"k1={generate_key()},digest={generate_key()}"


@dataclass(frozen=True)
class Mistake:
    """What a person does, and what the message must hold so that they know what to do instead.

    Args:
        name: completes "the app, or a person, …".
        make: raises an error of ours, or returns the text that a person then sees.
        cure: a part of the message.
    """

    name: str
    make: Callable[[Shop], object]
    cure: str


class Shop:
    """Created again for each mistake, in an empty working directory."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder, self.url = folder, database_url
        self._apps: list[Effects] = []

    def app(self, *job_types: Any, **options: Any) -> Effects:
        """An app on the shop's database, its tables made."""
        app = self.bare_app(*job_types, **options)
        migrate.init(app.store)
        return app

    def bare_app(self, *job_types: Any, url: str | None = None, **options: Any) -> Effects:
        """An app as it is declared."""
        app = Effects(url or self.url, job_types=[Scripted(), *job_types], **options)
        self._apps.append(app)
        return app

    def close(self) -> None:
        set_default(None)  # a command has set its own
        for app in self._apps:
            app.dispose()

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def effects(self, *arguments: object, url: str | None = "", env: dict[str, str] | None = None) -> str:
        """`effects …`, on the shop's database unless another URL, or None, is given: what it prints."""
        named = None if url is None else url or self.url
        variables = {"EFFECTS_DATABASE_URL": named, "EFFECTS_APP": None, **(env or {})}
        with unconfigured_logging():
            result = CliRunner(env=variables).invoke(cli, list(map(str, arguments)), prog_name="effects")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return f"{result.stdout}{result.stderr}"

    def handled(self, perform: Callable[[], Any], **policies: Any) -> str:
        """What `effects why` tells of a job whose handler did this."""
        job_type = Doing(perform)
        for name, value in policies.items():
            setattr(job_type, name, value)
        return self.why(self.app(job_type), enqueue("shop.charge", {}, key="k", effects=self._apps[-1]).job_id)

    def why(self, app: Effects, name: object) -> str:
        """Drain, and ask for an effect: the sentence."""
        Worker(app).drain()
        [evidence] = find_evidence(app, str(name))
        return sentence(evidence)


class Doing(JobType[dict[str, Any]]):
    """Its handler does what the mistake does."""

    name = "shop.charge"
    retry = RetryPolicy(max_attempts=1)

    def __init__(self, perform: Callable[[], Any]) -> None:
        self._perform = perform

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Any:
        return self._perform()


def plain(message: str, shop: Shop) -> str:
    """The message without what differs from run to run: folders, times, ids, the database."""
    file = shop.url.removeprefix("sqlite:///")
    for value, name in ((shop.url, "DATABASE"), (file, "/srv/shop/shop.db"), (str(shop.folder), "/srv/shop")):
        message = message.replace(value, name)
    message = re.sub(r"\(known: ([\w.]+, )+[\w.]+\)", "(known: …)", message)
    message = re.sub(r"20\d\d-\d\d-\d\d[ T][\d:.]+Z", "TIME", message)
    message = re.sub(r"\b(ep|msg|run)_[0-9A-Za-z]{8,}", r"\1_…", message)
    message = re.sub(r"[\w.-]+:\d+:[0-9a-f]{8}", "WORKER", message)
    message = re.sub(r"\b(in|due|due for) \d+ s\b", r"\1 N s", message)
    message = re.sub(r'database="database [^"]+"', 'database="file /srv/shop/shop.db"', message)
    return re.sub(r"tests/mistakes/(\w+)\.py:\d+", r"shop/\1.py:7", message)  # the line may move
