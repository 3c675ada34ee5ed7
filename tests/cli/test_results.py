"""`effects.cli.results`: what a command returns is printed for people or for scripts, and ends with its exit code."""

from __future__ import annotations

import json

import click
import msgspec
import pytest
from click.testing import CliRunner
from click.testing import Result as Run

from effects.cli import CommandResult, Context, Table, command, limit_option, listed
from effects.cli.options import parse_age, parse_time


class Fact(msgspec.Struct):
    job_type: str
    created_at: str
    patterns: list[str]


FACT = Fact("note.file", "today", ["a", "b"])


def run(result: CommandResult, *arguments: str) -> Run:
    @click.command()
    @command
    def answer(context: Context) -> CommandResult:
        """Answer."""
        return result

    return CliRunner().invoke(answer, arguments, obj=Context(), standalone_mode=False)


def test_json_and_text_are_printed_by_one_result() -> None:
    assert run(CommandResult(FACT)).stdout == "type      note.file\ncreated   today\npatterns  a, b\n"
    assert json.loads(run(CommandResult(FACT), "--json").stdout) == msgspec.to_builtins(FACT)


def test_blocks_have_an_empty_line_between_them() -> None:
    table = Table(("id",), [(1,)], empty="no rows")
    assert run(CommandResult(FACT, ["first", table, {"last": None}])).stdout == "first\n\nid\n1\n\nlast  -\n"


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_note_goes_to_standard_error_and_the_exit_code_is_returned(arguments: tuple[str, ...]) -> None:
    answer = run(CommandResult({"found": 1}, note="look here", exit_code=1), *arguments)
    assert answer.stderr == "look here\n"
    assert answer.return_value == 1


def test_a_cut_list_shows_that_there_are_more() -> None:
    def table(rows: object) -> Table:
        return Table(("row",), [(row,) for row in rows], empty="no rows")  # type: ignore[attr-defined]

    short, long = listed([1, 2], 2, table), listed([1, 2, 3], 2, table, document=str)
    assert (short.document, short.note) == ([1, 2], None)
    assert (long.document, long.note) == (["1", "2"], "There are more than 2: use --limit.")
    assert run(listed([], 2, table)).stdout == "no rows\n"


def test_a_length_of_time_has_a_unit() -> None:
    assert [parse_age(text) for text in ("90s", "15m", "6h", "3d")] == [90, 900, 21_600, 259_200]
    for text in ("", "6", "h", "-1h", "0m", "1 h", "1w", "٣h", "1h30m"):
        with pytest.raises(click.BadParameter, match="is not a length of time; give a number and s, m, h or d"):
            parse_age(text)


def test_a_time_is_utc_unless_it_has_a_zone() -> None:
    assert parse_time("2026-11-21T08:00").isoformat() == "2026-11-21T08:00:00+00:00"
    assert parse_time("2026-11-21T08:00+02:00").isoformat() == "2026-11-21T08:00:00+02:00"
    assert parse_time("2026-11-21").isoformat() == "2026-11-21T00:00:00+00:00"
    with pytest.raises(click.BadParameter, match="'soon' is not a time; give one such as"):
        parse_time("soon")


def test_the_limit_is_fifty_unless_it_is_named() -> None:
    @click.command()
    @limit_option
    @command
    def answer(context: Context, *, limit: int) -> CommandResult:
        """Answer."""
        return CommandResult({"limit": limit})

    assert CliRunner().invoke(answer, [], obj=Context(), standalone_mode=False).stdout == "limit  50\n"
    assert "limit  7" in CliRunner().invoke(answer, ["--limit", "7"], obj=Context(), standalone_mode=False).stdout
