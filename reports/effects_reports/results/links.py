"""Download links: signed, short-lived, for one file, and if wanted for one person or a number of downloads."""

from __future__ import annotations

from effects import Effects
from effects.extend import app_of, arguments
from effects_reports.delivery.link_tokens import LINK_SECONDS, Link, LinkTerms, read_token, write_link
from effects_reports.errors import ReportInvalid
from effects_reports.results.result_file import ready_status


@arguments.checked(ReportInvalid, run_id=arguments.NAME, base_url=arguments.text)
def download_url(
    run_id: str,
    base_url: str,
    *,
    seconds: float = LINK_SECONDS,
    uses: int | None = None,
    principal: str | None = None,
    effects: Effects | None = None,
) -> str:
    """A link to a run's file, as `download_app` serves it.

    Args:
        run_id: of the run, as its receipt has it.
        base_url: where that app is mounted: `https://shop.example/downloads`.
        seconds: how long it is good for, by this host's clock. Default 15 minutes, at most 7 days.
        uses: for how many downloads, 1 to 1,000,000; default any number. They are counted in a row of this link's own,
            which is written at once. A download that is resumed within an hour is one.
        principal: who alone may use it, in the app's own words: what the `principal` of `download_app` gives.
        effects: the Effects to use; default the process's.

    Raises:
        ReportNotFound, ReportStateError: there is no such file now.
        KeyUnavailable: EFFECTS_KEYS holds no key to sign with.
        ReportInvalid: `seconds` or `uses` is out of bounds; or `principal` is empty, which would be everybody who is
            not signed in.
    """
    terms = LinkTerms(seconds=seconds, uses=uses, principal=principal)
    terms.check()
    app = app_of(effects)
    sha256 = str(ready_status(run_id, effects=app).sha256)
    with app.store.begin() if uses is not None else app.store.read() as connection:
        return write_link(app, connection, run_id, sha256, base_url, terms)


def read_link(token: str, principal: str | None, *, effects: Effects | None = None) -> Link:
    """What a link's last part is for. Asks no database.

    Raises:
        LinkExpired: it was good once.
        LinkInvalid: it never was, or not for this person.
    """
    return read_token(app_of(effects), token, principal)
