r"""SELECTs with all that a toolkit could mistake for its own, each beside the plain statement that gives the same rows.

Each has two columns, `id` and another, and reads the table `awkward`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from effects_reports import ReportDefinition, report, sql_report

POSTGRESQL, SQLITE = ("postgresql",), ("sqlite",)
metadata = sa.MetaData()
awkward = sa.Table(
    "awkward", metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Column("label", sa.Text),
    sa.Column("n", sa.Integer), sa.Column("rate %", sa.Text),
)  # fmt: skip
ROWS = [
    {"id": 1, "label": "100%", "n": 7, "rate %": "%(n)s"},
    {"id": 2, "label": "50%% :q", "n": -2, "rate %": ":q"},
    {"id": 3, "label": 'it\'s \\ "x" ? $1 %s', "n": None, "rate %": None},
    {"id": 4, "label": "é😀 [a] `b`; --", "n": 0, "rate %": "?"},
]
KINDS = {str: str, int: int, list: list[str]}


@dataclass(frozen=True)
class Case:
    """A SELECT as a report has it, and the same as a driver takes it, without parameters.

    `dialects`: the databases that know it. `name`: of its second column.
    """

    sql: str | Callable[[], sa.Select[Any]]
    plain: str
    params: dict[str, Any] = field(default_factory=dict)
    dialects: tuple[str, ...] = (*POSTGRESQL, *SQLITE)
    name: str = "x"

    def declare(self, report_name: str, **options: Any) -> ReportDefinition:
        types = {"id": sa.Integer(), self.name: sa.Text()}
        options = {"columns": tuple(types), "types": types, **options}
        if not isinstance(self.sql, str):
            return report(report_name, **options)(self.sql)
        fields = [(name, KINDS[type(value)]) for name, value in self.params.items()]
        return sql_report(
            report_name, self.sql, params=msgspec.defstruct("Given", fields) if fields else None, **options
        )


# Expressions, which are the same in a report.
BOTH = [
    "'10% off'", "label || '%'", "'%%'", "'%s %d %(x)s'", "n % 2", "CAST(n % 2 AS text) || '%%'", "'a:b'",
    "':q'", "'12:30:00'",
    "'it''s :q'", "'?'", "'what? ?| ?&'", "'$1 $$ $q$'", "'-- no comment :q'", "'/* no comment :q */'",
    r"'back\slash \n'",
    r"'\'", r"'a\:b'", r"':q\'", r"'\:' || label", '"label"', '"rate %"', '"rate %" || \'%\'', "'é😀 :ü'",
    "n /* :q */ + 1",
    "n /* it's \" % ? :q */", "n -- :q's % ?\n + 2", "'x' -- it's\n || 'y'", "'a;b' /* ; */", "'{\"a\": \":q\"}'",
    "'https://x/?a=:q&b=%20'", "replace(label, '%', ':q')",
    "CASE WHEN label LIKE '%!%%' ESCAPE '!' THEN 'y:n' ELSE '%' END",
    "''", "NULLIF(label, '100%')", "' '' '' '", "'\"' || label || '\"'", "'line\nbreak :q'",
]  # fmt: skip
OF_POSTGRESQL = [
    "$$10% :q it's$$", "$t$it's % $$ :q$t$", "$é$ :q $é$", r"E'it\'s :x %'", r"E'a\\' || ':z'", r"e'\':' || $$'$$",
    r"U&'d\0061t :x %'", "CAST(B'101' AS text)", "CAST(X'1F' AS text)", "n::text || '%'", "n :: text",
    "(ARRAY[1,2,3])[1:2]::text",
    "(ARRAY[1,2,3])[:2]::text", "(ARRAY[1,2,3])[n:3]::text", "(ARRAY[[1,2],[3,4]])[1:2][2]::text",
    "('{\"a\":1}'::jsonb ? 'a')::text", "('{\"a\":1}'::jsonb ?| ARRAY['a', ':q'])::text",
    "('{\"a\":1}'::jsonb ?& ARRAY['a'])::text", "('{\"a\":[1,2]}'::jsonb @? '$.a[*] ? (@ > 1)')::text",
    "('{\"a\":1}'::jsonb @@ '$.a == 1')::text", "'{\"a\":\"%:q\"}'::jsonb ->> 'a'",
    "'{\"a\":{\"b\":\"?\"}}'::jsonb #>> '{a,b}'",
    "make_interval(days := 3)::text", "to_char(1234.5, 'FM9,990.0%')", "format('%s EUR %% %I', id, 'a b')",
    "/* /* nested :q */ ' */ 'x'", "'a'\n'b :q'", "E'a'\n  -- it's\n 'b\\' :z'", r"(label ~ '^\d+%$')::text",
    "(label ~* '(?i)X')::text",
    r"regexp_replace(label, '%', '\\\0')", "(timestamp '2026-01-01 12:30')::text",
    "(label = ANY (ARRAY['100%', ':q']))::text",
    "(5 *-- at :q\n -5)::text", "'{1,2}'::int[]::text", "label COLLATE \"C\"", "(n IS DISTINCT FROM 7)::text",
]  # fmt: skip
OF_SQLITE = [
    "[label]", "`label`", "[rate %]", "`rate %`", "printf('%d%% %s', id, ':q')", "strftime('%Y-%m', '2026-01-02')",
    "json_extract('{\"a\":\":q\"}', '$.a')", "'{\"a\":\"%\"}' ->> '$.a'", "label GLOB '*%?'", "CAST(x'253A' AS TEXT)",
    "'x' /* /* not nested :q */ || '%'",
]  # fmt: skip
NAMES = ["rate %", "%(x)s", "100%%", ":q", "a:b", "what?", "ünï", "it's", "$x$", "[x]", "/* x */", "-- x", "a\\b", "😀"]
TEXTS = [
    "'; DROP TABLE awkward --", "100%", "%s", "%(q)s", "%%", ":q", "\\", "\\'", "'", "''", '"', "$1", "$$",
    "?", "é😀", "",
    "*/ --", "a\nb", "' || 'x", "E'\\''",
]  # fmt: skip
# Expressions with placeholders, and what they are with values.
WITH_VALUES: list[tuple[str, str, dict[str, Any], tuple[str, ...]]] = [
    (":n % 3", "-7 % 3", {"n": -7}, ("postgresql", "sqlite")),
    ("2 -:n", "2 - -5", {"n": -5}, ("postgresql", "sqlite")),
    ("-:n", "- -5", {"n": -5}, ("postgresql", "sqlite")),
    (":n", "-9223372036854775807 - 1", {"n": -(2**63)}, ("postgresql", "sqlite")),
    ("'%' || :q || '%'", "'%it''s%'", {"q": "it's"}, ("postgresql", "sqlite")),
    ("label || :q /* :q it's */ || ':x'", "label || '%' || ':x'", {"q": "%"}, ("postgresql", "sqlite")),
    (r":q || '\:q'", "'a:q'", {"q": "a"}, ("postgresql", "sqlite")),
    ("CASE WHEN label IN :many THEN ':' ELSE :q END", "CASE WHEN label = '100%' THEN ':' ELSE '%' END",
     {"many": ["100%", "'"], "q": "%"}, ("postgresql", "sqlite")),
    ("CASE WHEN label IN :many THEN 1 ELSE 2 END", "2", {"many": []}, ("postgresql", "sqlite")),
    (":q || $$ :q % $$ || $t$:q$t$", "'a :q % :q'", {"q": "a"}, POSTGRESQL),
    ("(:n::int + 1)::text", "'8'", {"n": 7}, POSTGRESQL),
    ("(ARRAY[1,2,3])[:n :3]::text", "'{2,3}'", {"n": 2}, POSTGRESQL),
    ("(ARRAY[1,2,3])[1 : :n]::text", "'{1,2}'", {"n": 2}, POSTGRESQL),
    ("('{\"a%\":1}'::jsonb ? :q)::text", "'true'", {"q": "a%"}, POSTGRESQL),
    ("$$'$$||:q||$$'$$", "'''%'''", {"q": "%"}, POSTGRESQL),
    ("[label] || :q", "label || 'x'", {"q": "x"}, SQLITE),
]  # fmt: skip
WHERE = [
    "label = '100%'", "label LIKE '1%'", "label LIKE '%:q'", "n % 2 = 1", "label <> ':q' -- :q",
    "label IN ('100%', '%s')",
]  # fmt: skip


def _label(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _selected(expression: str, name: str = "x") -> str:
    return f"SELECT id, {expression} AS {_label(name)} FROM awkward"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _column(expression: Any) -> Callable[[], sa.Select[Any]]:
    return lambda: sa.select(awkward.c.id, expression.label("x"))


def _where(condition: Any) -> Callable[[], sa.Select[Any]]:
    return lambda: sa.select(awkward.c.id, awkward.c.label.label("x")).where(condition)


def _objects() -> Iterator[tuple[str, Case]]:
    c = awkward.c
    document = sa.literal_column("CAST('{\"a\": 1}' AS jsonb)", JSONB)
    for title, expression, plain in [
        ("op", c.n.op("%")(4), "n % 4"), ("modulo", c.n % 4, "n % 4"),
        ("literal", sa.literal("%(x)s %% :q"), "'%(x)s %% :q'"),
        ("literal_column", sa.literal_column("'10% :q'"), "'10% :q'"),
        ("text", sa.text("'10% off'").columns(), "'10% off'"),
        ("column %", c["rate %"], '"rate %"'),
    ("replace", sa.func.replace(c.label, "%", "%%"), "replace(label, '%', '%%')"),
        ("escaped", sa.literal_column("'\\:q' || label"), "'\\:q' || label"),
    ]:  # fmt: skip
        if title == "text":
            yield title, Case(lambda: sa.select(awkward.c.id, sa.column("x")).select_from(
                awkward, sa.text("(SELECT '10% off' AS x) AS o")), _selected("'10% off'"))  # fmt: skip
            continue
        yield title, Case(_column(expression), _selected(plain))
    for title, condition, plain in [
        ("where text", sa.text("label = '100%'"), "label = '100%'"),
        ("where bound", sa.text("label = :l AND '%' <> ':' || :l").bindparams(l="100%"), "label = '100%'"),
        ("contains", c.label.contains("%", autoescape=True), "label LIKE '%!%%' ESCAPE '!'"),
        ("in", c.label.in_(["100%", "%s"]), "label = '100%'"),
        ("odd bind", c.label == sa.bindparam("a %(b)s:c", "100%"), "label = '100%'"),
        ("like", c.label.like("1%"), "label LIKE '1%'"),
    ]:  # fmt: skip
        yield title, Case(_where(condition), f"{_selected('label')} WHERE {plain}")
    yield "json operator", Case(
        _column(sa.cast(document.has_key("a"), sa.Text)), _selected("'true'"), dialects=POSTGRESQL
    )  # fmt: skip
    yield "format", Case(_column(sa.func.format("%s%%", c.id)), _selected("id || '%'"), dialects=POSTGRESQL)
    yield "names", Case(
        lambda: sa.select(awkward.c.id, awkward.c.label.label("a %(x)s:b?")), _selected("label"), name="a %(x)s:b?"
    )  # fmt: skip


def _cases() -> Iterator[tuple[str, Case]]:
    for dialects, expressions in (
        ((*POSTGRESQL, *SQLITE), BOTH),
        (POSTGRESQL, OF_POSTGRESQL),
        (SQLITE, OF_SQLITE),
    ):  # fmt: skip
        for expression in expressions:
            yield expression, Case(_selected(expression), _selected(expression), dialects=dialects)
    for name in NAMES:
        yield f"named {name}", Case(_selected("label", name), _selected("label"), name=name)
    for text in TEXTS:
        yield f"given {text}", Case(_selected("label || :q"), _selected(f"label || {_quoted(text)}"), {"q": text})
    for expression, plain, params, dialects in WITH_VALUES:
        yield expression, Case(_selected(expression), _selected(plain), params, dialects)
    for condition in WHERE:
        sql = f"{_selected('label')} WHERE {condition}"
        yield f"where {condition}", Case(sql, sql)
    for title, case in _objects():
        yield f"select {title}", case


CASES = dict(_cases())
