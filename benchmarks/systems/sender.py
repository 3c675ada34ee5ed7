"""effects with a handler that asks a receiver over HTTP; runs until it is ended."""

from __future__ import annotations

import http.client

from benchmarks.processes import await_go
from benchmarks.systems import ours
from effects import Done, Effects, JobType, Retry
from effects.worker import Worker

JOB_TYPE = "bench.send"


class Send(JobType[dict[str, object]]):
    """One request to the port that the payload names."""

    name = JOB_TYPE

    def perform(self, payload: dict[str, object], attempt: object) -> Done:
        connection = http.client.HTTPConnection("127.0.0.1", int(str(payload["port"])), timeout=10)
        try:
            connection.request("POST", "/")
            answer = connection.getresponse()
            answer.read()
        except OSError as error:
            raise Retry(type(error).__name__) from None
        finally:
            connection.close()
        return Done()


def app(database: str) -> Effects:
    return ours.app(database, Send())


def work(database: str) -> None:
    worker = Worker(app(database), grace_seconds=1)
    await_go()
    worker.run()
