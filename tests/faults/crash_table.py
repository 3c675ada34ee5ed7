"""What must be true after a crash at each point, as data.

A row: at `point`, `action` strikes while one job of `kind` is under way. Then the row on disk is `state`; after
recovery the job is `ended` with the attempts `outcomes`, and the peer has counted one of `effects`.
"""

from __future__ import annotations

from dataclasses import dataclass

from effects.kit.crashpoints import Action

REPEAT, HELD = "step_job", "step_job.held"


@dataclass(frozen=True)
class Row:
    point: str
    action: Action
    state: str  # absent, queued, running, released, failed, or an end; "" where a raise leaves it to the next moment
    effects: tuple[int, ...]
    outcomes: tuple[str, ...] | None = None  # None: the repeats of a race, checked by the invariants alone
    kind: str = REPEAT
    ended: str = "succeeded"
    steps: tuple[str, ...] = ()  # default: do, or release and do
    locks: bool = False  # the paused transaction holds the row (or the file): only its waking goes on

    def __str__(self) -> str:
        return f"{self.point}-{self.action}-{self.kind}"


AFTER_A_LOSS = ("lost", "succeeded")
ASK = ("ask", "release", "do")  # stands at the stub server while the heart beats

KILL = [
    Row("enqueue.before_commit", "kill", "absent", (0,), (), ended="absent"),
    Row("enqueue.committed", "kill", "queued", (1,), ("succeeded",)),
    Row("claim.before_commit", "kill", "queued", (1,), ("succeeded",)),
    Row("claim.committed", "kill", "running", (1,), AFTER_A_LOSS),
    Row("perform.before", "kill", "running", (1,), AFTER_A_LOSS),
    Row("perform.after", "kill", "running", (2,), AFTER_A_LOSS),
    Row("perform.after", "kill", "released", (1,), ("lost",), HELD, "dead"),
    Row("release.before", "kill", "running", (1,), AFTER_A_LOSS, HELD),
    Row("release.committed", "kill", "released", (0,), ("lost",), HELD, "dead"),
    Row("settle.before", "kill", "running", (2,), AFTER_A_LOSS),
    Row("settle.before", "kill", "released", (1,), ("lost",), HELD, "dead"),
    Row("settle.applied", "kill", "running", (2,), AFTER_A_LOSS, steps=("do", "follow")),
    Row("settle.applied", "kill", "released", (1,), ("lost",), HELD, "dead"),
    Row("settle.committed", "kill", "succeeded", (1,), ("succeeded",), steps=("do", "follow")),
    Row("heartbeat.before", "kill", "running", (1,), AFTER_A_LOSS, HELD, steps=ASK),
    Row("heartbeat.committed", "kill", "running", (1,), AFTER_A_LOSS, HELD, steps=ASK),
    Row("rescue.selected", "kill", "running", (1,), AFTER_A_LOSS),
    Row("rescue.committed", "kill", "failed", (1,), AFTER_A_LOSS),
]

RAISE = [
    Row("enqueue.before_commit", "raise", "absent", (0,), (), ended="absent"),
    Row("enqueue.committed", "raise", "queued", (1,), ("succeeded",)),
    Row("claim.before_commit", "raise", "queued", (1,), ("succeeded",)),
    Row("claim.committed", "raise", "", (1,), ("succeeded",)),  # given back on the way out
    Row("perform.before", "raise", "", (1,), ("unknown", "succeeded")),
    Row("perform.before", "raise", "", (1,), ("failed", "succeeded"), HELD),
    Row("perform.after", "raise", "", (2,), ("unknown", "succeeded")),
    Row("perform.after", "raise", "", (1,), ("unknown",), HELD, "dead"),
    Row("release.before", "raise", "", (1,), ("failed", "succeeded"), HELD),
    Row("release.committed", "raise", "", (1,), ("failed", "succeeded"), HELD),
    Row("settle.before", "raise", "", (1,), ("succeeded",)),
    Row("settle.before", "raise", "", (1,), ("succeeded",), HELD),
    Row("settle.applied", "raise", "", (1,), ("succeeded",), steps=("do", "follow")),
    Row("settle.applied", "raise", "", (1,), ("succeeded",), HELD),
    Row("settle.committed", "raise", "", (1,), ("succeeded",), steps=("do", "follow")),
    Row("heartbeat.before", "raise", "", (1,), ("succeeded",), HELD, steps=ASK),
    Row("heartbeat.committed", "raise", "", (1,), ("succeeded",), HELD, steps=ASK),
    Row("rescue.selected", "raise", "", (1,), AFTER_A_LOSS),
    Row("rescue.committed", "raise", "", (1,), AFTER_A_LOSS),
]

PAUSE = [
    Row("enqueue.before_commit", "pause", "absent", (1,), ("succeeded",), locks=True),
    Row("enqueue.committed", "pause", "queued", (1,), ("succeeded",)),
    Row("claim.before_commit", "pause", "queued", (1, 2), locks=True),
    Row("claim.committed", "pause", "running", (1, 2), AFTER_A_LOSS),
    Row("claim.committed", "pause", "running", (1,), AFTER_A_LOSS, HELD),
    Row("perform.before", "pause", "running", (2,), AFTER_A_LOSS),
    Row("perform.before", "pause", "running", (1,), AFTER_A_LOSS, HELD),
    Row("perform.after", "pause", "running", (2,), AFTER_A_LOSS),
    Row("perform.after", "pause", "released", (1,), ("lost",), HELD, "dead"),
    Row("release.before", "pause", "running", (1,), AFTER_A_LOSS, HELD),
    # The mark was made in time, so the woken handler may act: that is what `unknown` says.
    Row("release.committed", "pause", "released", (0, 1), ("lost",), HELD, "dead"),
    Row("settle.before", "pause", "running", (2,), AFTER_A_LOSS),
    Row("settle.before", "pause", "released", (1,), ("lost",), HELD, "dead"),
    Row("settle.applied", "pause", "running", (1,), ("succeeded",), steps=("do", "follow"), locks=True),
    Row("settle.committed", "pause", "succeeded", (1,), ("succeeded",), steps=("do", "follow")),
    Row("heartbeat.before", "pause", "running", (1,), AFTER_A_LOSS, HELD, steps=ASK),
    Row("heartbeat.committed", "pause", "running", (1,), AFTER_A_LOSS, HELD, steps=ASK),
    Row("rescue.selected", "pause", "running", (1, 2), locks=True),
    Row("rescue.committed", "pause", "failed", (1,), AFTER_A_LOSS),
]

TABLE = [*KILL, *RAISE, *PAUSE]
