"""The operators' half of the state machine: cancel, pause, requeue, decide about the dead, prune, move the clock."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from effects import Effects, JobNotFound, JobStateError
from effects.app.retention import prune
from effects.operate.tables.audit import audit
from effects.store.effects import requeue as resolution
from effects.store.effects.requeue import requeue
from effects.store.limits import key_limits as limit_rows
from effects.store.queue import cancellation
from tests.properties.model import Model, ModelJob

STEP_SECONDS = 50.0  # no lease, deadline or delay is a multiple of it, so real time in between changes nothing
SEASON_SECONDS = 100 * 86_400.0  # longer than anything is kept


class OperatorMachine(RuleBasedStateMachine):
    """What people do to jobs, whatever the workers are doing at that moment."""

    app: ClassVar[Effects]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def _one(self, data: st.DataObject, *likely: int) -> ModelJob:
        """Any job that there ever was."""
        return self.model.jobs[data.draw(st.sampled_from([*likely, *sorted(self.model.jobs)]))]

    @precondition(lambda self: any(not job.live for job in self.model.present) and len(self.model.present) < 9)
    @rule(data=st.data(), confirm_unknown=st.booleans(), confirm_done=st.booleans())
    def requeue(self, data: st.DataObject, confirm_unknown: bool, confirm_done: bool) -> None:
        job = self._one(data, *(job.id for job in self.model.present if not job.live))
        allowed = self.model.may_be_requeued(job, confirm_unknown=confirm_unknown, confirm_done=confirm_done)
        afresh = allowed and self.model.effect(job) == "done"
        try:
            new = requeue(
                self.app.store, self.app.job_types, job.id, confirm_unknown=confirm_unknown,
                confirm_done=confirm_done, actor="test",
            )  # fmt: skip
        except (JobNotFound, JobStateError):
            assert not allowed
            return
        assert allowed
        assert new.job_id not in self.model.jobs
        self.model.jobs[new.job_id] = job.requeued(new.job_id, self.model.clock, afresh=afresh)

    @precondition(lambda self: any(job.open for job in self.model.jobs.values()))
    @rule(data=st.data(), word=st.sampled_from(["ignore", "mark-done", "give-up"]))
    def a_person_decides(self, data: st.DataObject, word: str) -> None:
        job = self._one(data, *(job.id for job in self.model.present if job.open))
        allowed = job.open and (word == "ignore" or self.model.effect(job) == "unknown")
        try:
            if word == "ignore":
                resolution.ignore(self.app.store, self.app.ledgers, job.id, actor="test", reason="so be it")
            else:
                resolution.resolve_unknown(
                    self.app.store, self.app.job_types, self.app.ledgers, job.id, word, actor="test"
                )  # type: ignore[arg-type]
        except (JobNotFound, JobStateError):
            assert not allowed
            return
        assert allowed
        job.closed = True
        if word == "mark-done":
            job.state, job.vouched = "done", True

    @precondition(lambda self: any(not job.live for job in self.model.present))
    @rule()
    def a_season_passes_and_what_is_old_goes(self) -> None:
        self._move_clock(SEASON_SECONDS)
        prune(self.app)
        self.model.prune()
        assert audit(self.app.store, self.app.ledgers) == []

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = self._one(data)
        try:
            answer = cancellation.cancel(self.app.store, self.app.ledgers, job.id, actor="test")
        except (JobNotFound, JobStateError):
            assert not job.live
            return
        assert job.live
        assert (answer == "cancelled") == (job.status != "running")
        if answer == "cancelled":
            job.cancelled()
        else:
            job.cancel = True

    @rule()
    def somebody_pauses_the_key(self) -> None:
        with self.app.store.begin() as connection:
            limit_rows.pause(self.app.store, connection, "l", actor="test", seconds=120)
        self.model.pause("l", 120)

    @rule()
    def somebody_resumes_the_key(self) -> None:
        with self.app.store.begin() as connection:
            assert limit_rows.resume(self.app.store, connection, "l", actor="test") == self.model.is_paused("l")
        self.model.paused.clear()

    @rule(steps=st.integers(1, 4))
    def time_passes(self, steps: int) -> None:
        self._move_clock(steps * STEP_SECONDS)

    def _move_clock(self, seconds: float) -> None:
        self.model.clock += seconds
        self.app.store.shift_clock(seconds)
