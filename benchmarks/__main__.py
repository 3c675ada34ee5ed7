"""`python -m benchmarks`: run the comparisons and print a table each."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from benchmarks import (
    backlog,
    calls,
    costs,
    drain_postgresql,
    drain_sqlite,
    enqueue_bulk,
    fairness,
    groups,
    idle,
    in_flight,
    lists,
    mail,
    mail_waiting,
    mail_wire,
    numbers,
    pages,
    pickup,
    prune,
    rate,
    report_memory,
    report_numbering,
    report_speed,
    reports,
    servers,
    startup,
    statements,
    unresolved,
    wal,
    webhook_costs,
    webhook_fairness,
    webhook_handshakes,
    webhook_silence,
    webhooks,
    webhooks_waiting,
)
from benchmarks.options import Options
from benchmarks.rounds import Report
from benchmarks.tables import render

Comparisons: TypeAlias = "dict[str, Callable[[Options], Report]]"

# What `make bench` runs, within 45 minutes on two cores.
DELIVERY: Comparisons = {
    "drain_postgresql": drain_postgresql.run,
    "drain_sqlite": drain_sqlite.run,
    "enqueue_bulk": enqueue_bulk.run,
    "calls": calls.run,
    "pickup": pickup.run,
    "idle": idle.run,
    "webhooks": webhooks.run,
    "webhooks_waiting": webhooks_waiting.run,
    "webhook_handshakes": webhook_handshakes.run,
    "webhook_silence": webhook_silence.run,
    "mail": mail.run,
    "mail_wire": mail_wire.run,
    "mail_waiting": mail_waiting.run,
}
# Where the time goes.
COSTS: Comparisons = {
    "costs": costs.run,
    "webhook_costs": webhook_costs.run,
    "statements": statements.run,
    "wal": wal.run,
    "in_flight": in_flight.run,
    "committers": idle.committers,
}
# What jobs of one key, group or partner cost those of others.
FAIRNESS: Comparisons = {
    "rate": rate.run,
    "fairness": fairness.run,
    "busy_group": groups.busy,
    "waiting_groups": groups.waiting,
    "held_locks": groups.held,
    "webhook_fairness": webhook_fairness.run,
}
UPKEEP: Comparisons = {
    "prune": prune.run,
    "numbers": numbers.run,
    "unresolved": unresolved.run,
    "startup": startup.run,
}
REPORTS: Comparisons = {
    "reports": reports.run,
    "report_memory": report_memory.run,
    "report_chunks": report_memory.chunks,
    "report_speed": report_speed.run,
    "report_workers": report_speed.workers,
    "report_sheets": report_speed.sheets,
    "report_numbering": report_numbering.run,
    "report_order": report_numbering.order,
}
PAGES: Comparisons = {
    "lists": lists.run,
    "pages": pages.run,
}
# Half an hour each, or more.
LONG: Comparisons = {
    "backlog": backlog.run,
    "held_snapshot": backlog.held,
    "many_pages": pages.many,
}
GROUPS: dict[str, Comparisons] = {
    "delivery": DELIVERY, "costs": COSTS, "fairness": FAIRNESS, "upkeep": UPKEEP, "reports": REPORTS, "pages": PAGES,
    "long": LONG,
}  # fmt: skip
COMPARISONS: Comparisons = {name: run for group in GROUPS.values() for name, run in group.items()}
ROUNDS = 5
QUICK_ROUNDS, QUICK_SCALE = 1, 0.1


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 if every goal was met, else 1; a quick run judges nothing."""
    parsed = _parser().parse_args(arguments)
    rounds = parsed.rounds or (QUICK_ROUNDS if parsed.quick else ROUNDS)
    all_reports: list[Report] = []
    with servers.postgresql() as server:
        facts = {"date": time.strftime("%Y-%m-%d"), **servers.surroundings(), **server.settings()}
        _print_header(facts, rounds, parsed.quick)
        options = Options(server, rounds, QUICK_SCALE if parsed.quick else 1.0, _say)
        for name in parsed.only or GROUPS[parsed.group]:
            begun = time.monotonic()
            report = COMPARISONS[name](options)
            report.notes.append(f"Took {time.monotonic() - begun:.0f} s.")
            all_reports.append(report)
            _say("")
            print(render(report) + "\n", flush=True)
    if parsed.json:
        run = {"surroundings": facts, "rounds": rounds, "quick": parsed.quick}
        text = json.dumps({**run, "reports": [report.as_json() for report in all_reports]}, indent=1)
        parsed.json.write_text(text + "\n", encoding="utf-8")
    missed = [goal for report in all_reports for goal in report.goals if not goal.met and not goal.aim]
    return 1 if missed and not parsed.quick else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, help=f"interleaved rounds; default {ROUNDS}")
    parser.add_argument("--quick", action="store_true", help="one small round: does it run? not for quoting")
    parser.add_argument("--only", action="append", choices=COMPARISONS, metavar="NAME",
                        help=f"this comparison alone (repeatable): {', '.join(COMPARISONS)}")  # fmt: skip
    parser.add_argument("--group", choices=GROUPS, default="delivery", help="comparisons to run; default delivery")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample as JSON")
    return parser


def _print_header(facts: dict[str, str], rounds: int, quick: bool) -> None:
    kind = "a QUICK run, its figures mean nothing" if quick else "medians"
    print(f"## {kind}: {rounds} interleaved round{'s' if rounds > 1 else ''}\n")
    print("\n".join(f"- {name}: {value}" for name, value in facts.items()) + "\n", flush=True)


def _say(text: str) -> None:
    """Progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
