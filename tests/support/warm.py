"""Imported by the parent of a test's processes: what each of them would make once is made, and inherited: tables, entry
points, job types. It connects to nothing and starts no thread. The variables of effects are each child's own.
"""

from __future__ import annotations

import os

from effects import Effects

for _name in [name for name in os.environ if name.startswith("EFFECTS_")]:
    del os.environ[_name]
Effects("sqlite:///nowhere.db", job_types=[])
