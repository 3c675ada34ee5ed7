"""What `effects --app tests.cli.shop_app:app` loads in a process of its own."""

from effects import Effects
from tests.support.scripted import Scripted


def job_types() -> list[Scripted]:
    return [Scripted(), Scripted("brief", time_limit_seconds=4.0)]


app = Effects(job_types=job_types())
