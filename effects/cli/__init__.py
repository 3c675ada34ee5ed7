"""The command line. What a package's commands are built of is exported here; the `effects` command is in `main`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from effects.process import lazy

if TYPE_CHECKING:
    from effects.cli.context import Context, actor, pass_context
    from effects.cli.files import output_file
    from effects.cli.options import (
        TimeSpan,
        before_key_option,
        before_option,
        key_option,
        limit_option,
        option_group,
        override_options,
        parse_age,
        parse_json,
        parse_object,
        parse_time,
        queue_option,
        reason_option,
        required_reason_option,
        status_option,
        type_option,
        window_options,
    )
    from effects.cli.output import Table, cell
    from effects.cli.results import CommandResult, command, json_option, listed, page_note
    from effects.cli.waiting import notice_after, tell_wait, why_unserved
    from effects.text.wording import duration, shown_status
else:
    __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "effects.cli.results": "CommandResult, command, json_option, listed, page_note",
            "effects.cli.context": "Context, actor, pass_context",
            "effects.cli.options": (
                "TimeSpan, before_key_option, before_option, key_option, limit_option, option_group, override_options, "
                "parse_age, parse_json, parse_object, parse_time, queue_option, reason_option, required_reason_option, "
                "status_option, type_option, window_options"
            ),
            "effects.cli.files": "output_file",
            "effects.cli.output": "Table, cell",
            "effects.cli.waiting": "notice_after, tell_wait, why_unserved",
            "effects.text.wording": "duration, shown_status",
        },
    )

__all__ = [
    "CommandResult",
    "Context",
    "Table",
    "TimeSpan",
    "actor",
    "before_key_option",
    "before_option",
    "cell",
    "command",
    "duration",
    "json_option",
    "key_option",
    "limit_option",
    "listed",
    "notice_after",
    "option_group",
    "output_file",
    "override_options",
    "page_note",
    "parse_age",
    "parse_json",
    "parse_object",
    "parse_time",
    "pass_context",
    "queue_option",
    "reason_option",
    "required_reason_option",
    "shown_status",
    "status_option",
    "tell_wait",
    "type_option",
    "why_unserved",
    "window_options",
]
