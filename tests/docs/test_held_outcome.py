"""The alert `EffectsOutcomesUnwritten`: a transaction holds the row of a job that is done, and its page ends it."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from effects import enqueue, status
from effects.worker import Worker
from tests.support.runbooks import Operator, blocks, sections
from tests.support.running import running
from tests.support.scripted import Scripted
from tests.support.waiting import wait_until

AGE = re.compile(r"^effects_oldest_unsettled_seconds ([\d.e-]+)$", re.MULTILINE)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_an_outcome_that_a_lock_holds_up_is_written_after_what_the_page_says_to_type(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("effects.operate.tables.server_checks.SNAPSHOT_WARNING_SECONDS", 0.0)
    job_type = Scripted(on_unknown="hold")
    with ExitStack() as stack:
        operator = Operator(database_url, tmp_path, stack, {}, options={"job_types": [job_type]})
        app = operator.app(heartbeat_seconds=0.2)
        enqueue("scripted", {"moves": ["wait"]}, key="held", effects=app)
        stack.enter_context(running(Worker(app)))
        assert job_type.began.wait(60)
        holder = create_engine(operator.driver_url).connect()
        stack.callback(holder.invalidate)
        operator.words["PID"] = holder.execute(text("SELECT pg_backend_pid()")).scalar()
        holder.execute(text("SELECT id FROM effects_jobs FOR UPDATE"))
        job_type.gate.set()
        wait_until(lambda: oldest(operator) > 1.0)
        operator.type(*blocks(sections("alerts.md")["EffectsOutcomesUnwritten"])[0])
        [finding] = operator.findings("snapshot")
        assert str(operator.words["PID"]) in finding.advice
        operator.type(*blocks(sections("findings.md")["snapshot"])[0])
        wait_until(lambda: status(key="held", effects=app).state == "done")
        wait_until(lambda: oldest(operator) == 0.0)


def oldest(operator: Operator) -> float:
    [age] = AGE.findall(operator.command("metrics").out)
    return float(age)
