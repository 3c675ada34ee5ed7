"""The demo as a command: `python -m examples.demo`, from the project's root."""

from __future__ import annotations

import sys
from functools import partial

from effects.cli.main import exit_code_of
from examples.demo.command import demo

sys.exit(exit_code_of(partial(demo.main, prog_name="python -m examples.demo", standalone_mode=False)))
