"""What `effects --app tests.cli.mixed_app:app` loads: a queue with both kinds of job types."""

from effects import Effects
from tests.support.scripted import AsyncScripted, Scripted

app = Effects(job_types=[Scripted(), AsyncScripted("calls", queue="default")])
