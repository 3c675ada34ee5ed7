"""What a handler sees of the attempt that it carries out."""

from __future__ import annotations

from typing import Any, Protocol

from effects.model.job import Job


class Attempt(Protocol):
    """The running attempt, as its handler sees it."""

    @property
    def job(self) -> Job:
        """The job: `id`, idempotency `key` (the same for every attempt and requeue), `trace_context`, and so on."""
        ...

    @property
    def number(self) -> int:
        """1 for the first attempt."""
        ...

    @property
    def loaded(self) -> Any:
        """What `JobType.load` returned for this job, or None."""
        ...

    @property
    def cancel_requested(self) -> bool:
        """Whether cancellation was requested; return `Cancelled()` if the effect has not happened."""
        ...

    @property
    def draining(self) -> bool:
        """The worker ends once nothing is due (`effects work --drain`): it can keep nothing open for later jobs."""
        ...

    private: Any
    """Facts for the ledger of this job type, in a class of your own: digests, replies, addresses. Default None.

    The ledger reads them as `Settlement.private`; the core never logs, shows or stores them. Assign a new value rather
    than change the old one, which another thread may be recording.
    """

    def remaining_seconds(self) -> float:
        """Seconds until the attempt's time limit. A transport must end by itself before that."""
        ...

    def release(self) -> None:
        """Record durably that the effect may now happen.

        After it returns, a crash makes the effect *unknown* rather than a plain retry. Types whose policy is
        `repeat` need not call it: their claim counts as the release.

        It waits for the database: in `async def perform` write `await attempt.release_async()`.

        Raises:
            LeaseLost: the job is no longer this attempt's, it was cancelled, or its handler has answered (and left a
                task or thread behind, which calls this). The effect must not be carried out.
            ConfigurationError: it was called on the worker's event loop, which would wait for it.
        """
        ...

    async def release_async(self) -> None:
        """Record durably that the effect may now happen: `release`, awaited, while other handlers go on.

        Raises:
            LeaseLost: as `release`.
        """
        ...
