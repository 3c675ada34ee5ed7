"""How long deliveries to 100 partners wait while 100 others fall silent at once: they, or their name servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from sqlalchemy.orm import Session

from benchmarks import beside
from benchmarks.beside import P50, P95
from benchmarks.options import Options
from benchmarks.processes import Child, child
from benchmarks.rounds import Contender, Report, goal_and_aim, interleave
from benchmarks.systems import deliveries, partners
from benchmarks.systems.named_deliveries import SILENT
from benchmarks.systems.steady_events import type_of
from effects import Effects
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook

SAMPLED, WELL, FALLING = 20, 80, 100
EACH_SECOND = 2.0  # events to each of the 200
ANSWER_SECONDS = 0.02
STEADY_SECONDS = 3.0  # before the first sample: each endpoint's window has its width by then
TIMES = (2.0, 1.2)  # goal and aim
UNDISTURBED, PARTNERS, NAMES = "undisturbed", "partners", "names"
_SETTINGS = {
    UNDISTURBED: "200 partners answer",
    PARTNERS: "100 of 200 fall silent at once, and stay so",
    NAMES: "the name servers of 100 of 200 fall silent at once, and stay so",
}


def run(options: Options) -> Report:
    samples = max(beside.SAMPLES_MIN, options.size(beside.SAMPLES))
    contenders = [
        Contender(kind, setting, partial(_measure, options, kind, samples)) for kind, setting in _SETTINGS.items()
    ]
    rows = interleave(contenders, options.rounds, P95, options.say)
    load = f"{EACH_SECOND:g} events a second to each of {WELL + FALLING} partners"
    title = f"commit returned → request received beside {load}, {samples} samples a round"
    report = Report("webhook_silence", title, [P95, P50], rows, baseline=UNDISTURBED, decimals=2)
    for kind in (PARTNERS, NAMES):
        times = report.row(kind).median(P95) / report.row(UNDISTURBED).median(P95)
        report.goals += goal_and_aim(f"{kind} silent / undisturbed, p95", times, TIMES, at_least=False)
    report.notes = [
        "Sampled from the moment of the silence on, at 20 of those that answer. PostgreSQL, one worker, defaults.",
        "All partners close each connection after its answer, so that each delivery looks up a name.",
    ]
    return report


def _measure(options: Options, kind: str, samples: int) -> dict[str, float]:
    keys = deliveries.new_keys()
    with options.server.database() as database, ExitStack() as stack:
        sampled, well, falling = (
            stack.enter_context(child("partners", str(count), answers, str(ANSWER_SECONDS)))
            for count, answers in (
                (SAMPLED, partners.TELL_AND_CLOSE), (WELL, partners.CLOSE), (FALLING, partners.CLOSE),
            )
        )  # fmt: skip
        effects = deliveries.install(database, keys, [])
        stack.callback(effects.dispose)
        _add_endpoints(effects, [sampled, well], ".test")
        _add_endpoints(effects, [falling], SILENT, before=SAMPLED + WELL)
        worker = stack.enter_context(child("named_deliveries", keys, database))
        steady = stack.enter_context(
            child("steady_events", keys, str(SAMPLED), str(WELL + FALLING), str(EACH_SECOND), database)
        )
        worker.go()
        steady.go()
        threading.Event().wait(STEADY_SECONDS)
        begin = {PARTNERS: falling.silence, NAMES: worker.silence}.get(kind, lambda: None)
        return beside.waits(partial(_sample, effects, sampled), samples, begin=begin)


def _add_endpoints(effects: Effects, processes: Sequence[Child], domain: str, *, before: int = 0) -> None:
    """An endpoint for each of their partners, which takes an event type of its own."""
    number = before
    for process in processes:
        process.go()
        for port in partners.ports(process.line()):
            add_endpoint(f"http://p{number}{domain}:{port}/webhooks", [type_of(number)], effects=effects)
            number += 1


def _sample(effects: Effects, sampled: Child, number: int) -> float:
    """Milliseconds until the partner has the request; CLOCK_MONOTONIC is one clock for all processes of a machine."""
    with Session(effects.engine) as session, session.begin():
        deliver_webhook(WebhookEvent(type_of(number % SAMPLED), {"n": number}), session=session, effects=effects)
    committed = time.monotonic_ns()
    return (int(sampled.line()) - committed) / 1e6
