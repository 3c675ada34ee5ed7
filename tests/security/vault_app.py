"""What `effects --app tests.security.vault_app:app` loads in a worker's process; its keys are the environment's."""

from effects import Effects
from tests.security.vault import ChargeCard

app = Effects(job_types=[ChargeCard()])
