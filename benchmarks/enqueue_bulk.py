"""Enqueue on PostgreSQL: `enqueue_many` through a Session, beside bare psycopg writing the same rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence

import psycopg
from psycopg.types.json import Jsonb
from sqlalchemy.orm import Session

from benchmarks.drains import payload
from benchmarks.options import Options
from benchmarks.rounds import Contender, Goal, Report, Row, goal_and_aim, interleave
from benchmarks.systems import ours
from effects import Effects, NewJob, enqueue, enqueue_many

BATCH = 1000
BATCHES = 20
COPIED, COPIES = 10_000, 5  # rows a transaction
SINGLES = 1000
COLUMN = "rows/s"
BARE_SHARE, COPY_SHARES = 0.4, (0.4, 0.6)  # of the second goal and aim
OURS, OURS_ONE, OURS_MANY = "effects, enqueue_many", "effects, enqueue", "effects, enqueue_many of more"
BARE_COPY = "bare COPY"
BARE_VALUES, BARE_MANY, BARE_ONE = "bare INSERT … VALUES", "bare executemany", "bare INSERT"

_COLUMNS = "job_type, queue, priority, payload, routed"
_PLACES = "(%s, 'default', 5, %s, true)"
_ROW = f"INSERT INTO effects_jobs ({_COLUMNS}) VALUES {_PLACES}"
_ROWS = f"INSERT INTO effects_jobs ({_COLUMNS}) VALUES {', '.join([_PLACES] * BATCH)}"


def run(options: Options) -> Report:
    batches, singles = options.size(BATCHES), options.size(SINGLES)

    def contender(name: str, setting: str, measure: Callable[[str], float]) -> Contender:
        def once() -> float:
            with options.server.database() as database:
                ours.install(database).dispose()
                return measure(database)

        return Contender(name, setting, once)

    many, more = f"{BATCH:,} rows a transaction", f"{COPIED:,} rows a transaction"
    copies = options.size(COPIES)
    contenders = [
        contender(OURS_MANY, f"{more}, through a Session", lambda url: _ours(url, copies, _more)),
        contender(BARE_COPY, f"{more}, psycopg's write_row", lambda url: _bare(url, copies, _copy)),
        contender(OURS, f"{many}, through a Session", lambda url: _ours(url, batches, _many)),
        contender(BARE_VALUES, f"{many}, one statement", lambda url: _bare(url, batches, _values)),
        contender(BARE_MANY, f"{many}, psycopg's pipeline", lambda url: _bare(url, batches, _executemany)),
        contender(OURS_ONE, "1 row a transaction, through a Session", lambda url: _ours(url, singles, _one)),
        contender(BARE_ONE, "1 row a transaction", lambda url: _bare(url, singles, _bare_one)),
    ]
    rows = interleave(contenders, options.rounds, COLUMN, options.say)
    report = Report("enqueue_bulk", "enqueue into effects_jobs on PostgreSQL", [COLUMN], rows)
    bare = max((report.row(name) for name in (BARE_VALUES, BARE_MANY)), key=lambda row: row.median(COLUMN))
    report.baseline = bare.name
    share = _ratio(report.row(OURS_MANY), report.row(BARE_COPY))
    report.goals = [
        Goal(f"{OURS} / {bare.name} (the quicker)", _ratio(report.row(OURS), bare), BARE_SHARE),
        *goal_and_aim(f"{OURS_MANY} / {BARE_COPY}", share, COPY_SHARES),
    ]
    report.notes = ["The bare rows are those that a plain INSERT may write: no check of the payload, no receipts."]
    return report


def _ratio(row: Row, baseline: Row) -> float:
    return row.median(COLUMN) / baseline.median(COLUMN)


def _bodies(start: int, count: int) -> Iterable[dict[str, object]]:
    return (payload(number) for number in range(start, start + count))


# -- effects -------------------------------------------------------------------------------------------------


def _ours(database: str, turns: int, write: Callable[[Effects, Session, int], int]) -> float:
    effects = ours.app(database)
    try:
        with Session(effects.engine) as session, session.begin():
            write(effects, session, 0)  # the first statement compiles
        rows, begun = 0, time.perf_counter()
        for turn in range(turns):
            with Session(effects.engine) as session, session.begin():
                rows += write(effects, session, turn)
        return rows / (time.perf_counter() - begun)
    finally:
        effects.dispose()


def _many(effects: Effects, session: Session, turn: int, count: int = BATCH) -> int:
    jobs = [NewJob(job_type=ours.JOB_TYPE, payload=body) for body in _bodies(turn * count, count)]
    return len(enqueue_many(jobs, session=session, effects=effects))


def _more(effects: Effects, session: Session, turn: int) -> int:
    return _many(effects, session, turn, COPIED)


def _one(effects: Effects, session: Session, turn: int) -> int:
    enqueue(ours.JOB_TYPE, payload(turn), session=session, effects=effects)
    return 1


# -- psycopg -------------------------------------------------------------------------------------------------


def _bare(database: str, turns: int, write: Callable[[psycopg.Cursor[object], int], int]) -> float:
    with psycopg.connect(database) as connection:
        with connection.transaction(), connection.cursor() as cursor:
            write(cursor, 0)
        rows, begun = 0, time.perf_counter()
        for turn in range(turns):
            with connection.transaction(), connection.cursor() as cursor:
                rows += write(cursor, turn)
        return rows / (time.perf_counter() - begun)


def _parameters(turn: int) -> Sequence[tuple[str, Jsonb]]:
    return [(ours.JOB_TYPE, Jsonb(body)) for body in _bodies(turn * BATCH, BATCH)]


def _values(cursor: psycopg.Cursor[object], turn: int) -> int:
    cursor.execute(_ROWS, [value for row in _parameters(turn) for value in row])
    return BATCH


def _executemany(cursor: psycopg.Cursor[object], turn: int) -> int:
    cursor.executemany(_ROW, _parameters(turn))
    return BATCH


def _copy(cursor: psycopg.Cursor[object], turn: int) -> int:
    with cursor.copy(f"COPY effects_jobs ({_COLUMNS}) FROM STDIN") as copy:
        for body in _bodies(turn * COPIED, COPIED):
            copy.write_row((ours.JOB_TYPE, "default", 5, json.dumps(body), True))
    return COPIED


def _bare_one(cursor: psycopg.Cursor[object], turn: int) -> int:
    cursor.execute(_ROW, (ours.JOB_TYPE, Jsonb(payload(turn))))
    return 1
