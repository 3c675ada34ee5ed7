"""What of a text of SQL is code, as PostgreSQL itself reads it: placeholders there are values, all else stays."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from effects_reports import DefinitionInvalid, file_report, report, sql_report
from effects_reports.definitions.sql_tokens import split_sql
from effects_reports.formats.base import ChunkSource
from effects_reports.runs.planner import resolve_part
from tests.formats.rows import part
from tests.reports.awkward import CASES
from tests.reports.shop import orders
from tests.support.sampling import is_full

Q = msgspec.defstruct("Q", [("q", str)])


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        ("SELECT id, :q AS x FROM t\nWHERE name LIKE '%:q%'", 2),
        ("SELECT :q AS x, 'row :q'", 1),
        ("SELECT :q AS x, ':q'", 1),
        ('SELECT :q AS ":q"', 1),
        ("SELECT :q,\n\n E'it\\'s :q'", 3),
        ("SELECT :q, U&'\\0061 :q'", 1),
        ("SELECT :q, 'a''s (:q)'", 1),
        ("SELECT :q, /* ' */ 'x\n:q'", 2),
        ("SELECT 'a'\n ':q', :q", 2),
        ("SELECT :q, `rate :q`", 1),
        ("SELECT :q, [rate :q]", 1),
        ("SELECT :q, E'a'\n'\\':q'", 2),
        ("SELECT :q, ':as_of'", 1),
    ],
)
def test_a_declared_name_in_quotes_is_refused_with_its_line(sql: str, line: int) -> None:
    with pytest.raises(DefinitionInvalid, match=rf"line {line} of its SQL has :\w+ in quotes, where no value can be"):
        sql_report("x", sql, columns=("x",), params=Q)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT :q -- :n :q",
        "SELECT :q /* :n /* :q */ :n */",
        "SELECT :q, $$ :n :q $$",
        "SELECT $a$ $$ :n ' $a$, :q",
        "SELECT :q, ':n'",
        "SELECT :q, '12:30'",
        'SELECT :q, "a:n"',
        "SELECT :q, x::int, f(a := 1), a[1:2]",
        r"SELECT :q, '\:q'",
        "SELECT :q, 'mail:q'",
        "SELECT :q, '::q'",
        r"SELECT :q, a[:q\:n]",
        "SELECT :q, [rate :n]",
    ],
)
def test_a_name_that_is_none_is_left_alone(sql: str) -> None:
    sql_report("x", sql, columns=("x",), params=Q)


@pytest.mark.parametrize(
    ("sql", "line"), [("SELECT :q,\n :n", 2), ("SELECT :q -- ' \n, :n -- '", 2), ("SELECT :q, $$ $$:n", 1)]
)
def test_an_undeclared_name_in_code_is_refused_with_its_line(sql: str, line: int) -> None:
    with pytest.raises(DefinitionInvalid, match=rf"names :n, which is no field of its params, in line {line}"):
        sql_report("x", sql, columns=("x",), params=Q)


@pytest.mark.parametrize(
    "text", ["customer LIKE '%:q%'", 'customer = ":q"', "id = 1 -- :q", "id /* :q */ = 1", "customer = $$ :q $$"]
)
def test_a_text_of_sqlalchemys_may_name_a_value_in_code_only(text: str) -> None:
    """There a literal could end the quotes, or the comment, and what follows would be SQL."""
    clause = sa.text(text).bindparams(q="x' OR 1 = 1 --")
    declared = report("x", key=("id",))(lambda: sa.select(sa.select(orders).where(clause).subquery("s")))
    with pytest.raises(DefinitionInvalid, match=r"line 1 of a text.. in its select.. has :q in quotes or a comment"):
        declared.check()
    report("x", key=("id",))(lambda: sa.select(orders).where(sa.text(text.replace(":q", r"\:q")))).check()


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT $q AS x, 'it $q'", "line 1 of its SQL has \\$q in quotes"),
        ("SELECT 1 AS x -- $q", "which its SQL does not name"),
        ("SELECT $q AS x, $n", "names \\$n, which is no field"),
    ],
)
def test_of_duckdb_a_name_is_told_as_well(sql: str, says: str) -> None:
    with pytest.raises(DefinitionInvalid, match=says):
        file_report("x", sql, folder=".", files={"t": "*.csv"}, columns=("x",), params=Q)
    left = "SELECT $q AS x, 'costs $5', $$ $q $n $$, 'a$q', l[1:$q] -- $q $n"
    file_report("x", left, folder=".", files={"t": "*.csv"}, columns=("x",), params=Q)


def test_the_pieces_are_the_text() -> None:
    for case in CASES.values():
        assert "".join(piece.text for piece in split_sql(case.plain)) == case.plain


# -- as PostgreSQL reads it ---------------------------------------------------------------------------------------

CONTENT = st.text(":nq'\"$\\%-*/[]` \nEa", max_size=6)
TAGS = st.sampled_from(["$$", "$a$", "$é_1$"])


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def dollar(text: str, tag: str) -> str:
    return f"{tag}{text.replace('$', '')}{tag}"


QUOTED = st.one_of(
    CONTENT.map(lambda text: "'" + text.replace("'", "''") + "'"),
    CONTENT.map(lambda text: f"E'{escaped(text)}'"),
    CONTENT.map(lambda text: f"e'a'\n -- '\n'{escaped(text)}'"),
    st.builds(dollar, CONTENT, TAGS),
)
COMMENTS = st.one_of(
    CONTENT.map(lambda text: "--" + text.replace("\n", "") + "\n"),
    CONTENT.map(lambda text: f"/*{text.replace('*', '').replace('/', '')}*/"),
    CONTENT.map(lambda text: f"/* /*{text.replace('*', '').replace('/', '')}*/ ' :q */"),
    st.sampled_from([" ", "\n", "::text ", " :: text "]),
)
TERMS = st.tuples(st.sampled_from([":q", None, None]), QUOTED, COMMENTS)


@pytest.fixture(scope="module")
def server(postgresql_server: str) -> Any:
    with psycopg.connect(postgresql_server, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def connection(postgresql_server: str) -> Any:
    engine = sa.create_engine(postgresql_server.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as opened:
        yield opened
    engine.dispose()


@pytest.mark.slow
@settings(max_examples=300 if is_full() else 60)
@given(terms=st.lists(TERMS, min_size=1, max_size=5), value=CONTENT)
def test_as_postgresql_reads_it(terms: list[Any], value: str, server: Any, connection: Any) -> None:
    """Each placeholder is the value, whatever stands around it, as if the author had written that there."""

    def joined(placeholder: str) -> str:
        texts = [f"{placeholder if name else quoted}{comment}" for name, quoted, comment in terms]
        return f"SELECT {placeholder} || {'|| '.join(texts)} AS x"

    in_quotes = any(":q" in quoted for name, quoted, _ in terms if name is None)
    try:
        declared = sql_report("x", joined(":q"), columns=("x",), params=Q)
    except DefinitionInvalid:
        assert in_quotes
        return
    [(truth,)] = server.execute(joined("'" + value.replace("'", "''") + "'::text ").encode()).fetchall()
    resolved = resolve_part(declared, None, {"q": value}, "ndjson")
    source: ChunkSource = resolved.chunk_source()
    assert source.select is not None
    copied, result = part(source, "ndjson", "raw", connection)
    assert result.route == "copy"
    assert msgspec.json.decode(copied) == {"x": truth}
    assert connection.scalar(source.select) == truth
