"""The command line. What a package's commands are built of is exported here; the `effects` command is in `main`."""

from __future__ import annotations

from effects.kit import lazy

with lazy.names(__name__):
    from effects.cli.context import Context as Context
    from effects.cli.context import actor as actor
    from effects.cli.context import pass_context as pass_context
    from effects.cli.options import TimeSpan as TimeSpan
    from effects.cli.options import before_key_option as before_key_option
    from effects.cli.options import before_option as before_option
    from effects.cli.options import key_option as key_option
    from effects.cli.options import limit_option as limit_option
    from effects.cli.options import option_group as option_group
    from effects.cli.options import override_option as override_option
    from effects.cli.options import parse_age as parse_age
    from effects.cli.options import parse_json as parse_json
    from effects.cli.options import parse_object as parse_object
    from effects.cli.options import parse_time as parse_time
    from effects.cli.options import queue_option as queue_option
    from effects.cli.options import reason_option as reason_option
    from effects.cli.options import required_reason_option as required_reason_option
    from effects.cli.options import status_option as status_option
    from effects.cli.options import type_option as type_option
    from effects.cli.options import window_options as window_options
    from effects.cli.results import CommandResult as CommandResult
    from effects.cli.results import command as command
    from effects.cli.results import json_option as json_option
    from effects.cli.results import listed as listed
    from effects.cli.results import notice_after as notice_after
    from effects.cli.results import output_file as output_file
    from effects.cli.results import page_note as page_note
    from effects.cli.results import tell_wait as tell_wait
    from effects.cli.results import why_unserved as why_unserved
    from effects.cli.table import Table as Table
    from effects.cli.table import cell as cell
    from effects.kit.text.wording import duration as duration
