"""What `effects --app tests.cli.watched_app:app` loads: an app with an alert."""

from effects import Effects
from effects.model.alerts import Alert, DeadLetters
from tests.support.scripted import Scripted

app = Effects(
    job_types=[Scripted()], alerts=[Alert("dead", DeadLetters(), notify="scripted", payload={"name": "{summary}"})]
)
