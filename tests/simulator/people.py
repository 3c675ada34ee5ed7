"""What people do in a world: cancel, requeue, resolve, pause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from effects import Effects
from effects.calls import control
from effects.errors import EffectsError
from effects.store.effects.requeue import requeue, resolve_unknown
from effects.store.limits import key_limits, queue_pauses
from tests.simulator.database import Host
from tests.simulator.plan import PlannedAct

if TYPE_CHECKING:
    from tests.simulator.world import World

ACTOR = "person:ann"
PAUSE_SECONDS = 15.0
_LIVE = """
SELECT payload ->> 'name' FROM effects_jobs WHERE idempotency_key IS NOT NULL AND payload ->> 'name' LIKE 'job%'
ORDER BY status <> 'running', id LIMIT 5"""
_DEAD = """
SELECT h.id, h.payload ->> 'name' FROM effects_unresolved AS u JOIN effects_job_history AS h ON h.id = u.job_id
WHERE u.unknown = ? ORDER BY h.id"""


@dataclass(slots=True)
class Act:
    """What was done, and when it was committed.

    Attributes:
        subject: a job's name, or a key or queue.
        result: of a cancel; and whether it has said that no attempt makes the effect.
    """

    kind: str
    subject: str
    at: float
    result: str = ""
    prevented: bool = False


class People:
    """They see the database as it is; what they may not do is refused, and they leave it."""

    def __init__(self, world: World, host: Host) -> None:
        self._world, self._host = world, host
        self.acts: list[Act] = []

    @property
    def app(self) -> Effects:
        return self._host.app

    def carry_out(self) -> None:
        for act in sorted(self._world.plan.acts, key=lambda act: act.at):
            self._world.scheduler.sleep(act.at - self._world.scheduler.now)
            try:
                subject, result, prevented = self._do(act)
            except EffectsError as error:
                self._world.note("person", f"{act.kind} is refused: {type(error).__name__}")
                continue
            if subject:
                self._world.note("person", f"{act.kind} {subject} {result}{', which prevents it' if prevented else ''}")
                self.acts.append(Act(act.kind, subject, self._world.scheduler.now, result, prevented))

    def _do(self, act: PlannedAct) -> tuple[str, str, bool]:
        """On whom it was done, if on anybody; what it came to, and whether that prevents an effect."""
        match act.kind:
            case "cancel":
                return self._cancel(act.index)
            case "pause key":
                with self.app.store.begin() as connection:
                    key_limits.pause(self.app.store, connection, "l2", actor=ACTOR, seconds=PAUSE_SECONDS, create=True)
                return "l2", "", False
            case "pause queue":
                with self.app.store.begin() as connection:
                    queue_pauses.pause(
                        self.app.store, connection, "default", actor=ACTOR, seconds=PAUSE_SECONDS, create=True
                    )
                return "default", "", False
            case _:
                return self._resolve(act), "", False

    def _cancel(self, index: int) -> tuple[str, str, bool]:
        live = self._world.database.query(_LIVE)
        if not live:
            return "", "", False
        [name] = live[index % len(live)]
        result = control.cancel(key=name, actor=ACTOR, effects=self.app)
        return name, result.result, result.prevented

    def _resolve(self, act: PlannedAct) -> str:
        """A dead letter: what may have happened as the act says; what did not is requeued."""
        app, unknown = self.app, act.kind != "requeue" or bool(act.index % 2)
        dead = self._world.database.query(_DEAD, unknown)
        if not dead:
            return ""
        job_id, name = dead[act.index % len(dead)]
        if unknown:
            resolve_unknown(app.store, app.job_types, app.ledgers, job_id, act.kind, actor=ACTOR)  # type: ignore[arg-type]
        else:
            requeue(app.store, app.job_types, job_id, actor=ACTOR)
        return str(name)
