"""Reports as text: a Markdown table each, so that a run can be pasted."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.rounds import Report, Row


def render(report: Report) -> str:
    """The table of a report, its goals and its notes."""
    lines = [f"### {report.name}: {report.title}", ""]
    lines += markdown([_header(report), *(_cells(report, row) for row in report.rows)])
    lines.append("")
    for goal in report.goals:
        sign = "≥" if goal.at_least else "≤"
        word = "met" if goal.met else "MISSED"
        lines.append(f"- {word}: {goal.text}: {goal.value:.2f} ({'aim' if goal.aim else 'goal'} {sign} {goal.bound:g})")
    lines += [f"- {note}" for note in report.notes]
    return "\n".join(lines)


def _header(report: Report) -> list[str]:
    spread = ["lowest to highest"] if len(report.columns) == 1 else []
    ratio = [f"ratio to {report.baseline}"] if report.baseline else []
    return ["system", "setting", *report.columns, *spread, *ratio]


def _cells(report: Report, row: Row) -> list[str]:
    def number(value: float) -> str:
        return f"{value:,.{report.decimals}f}"

    cells = [row.name, row.setting]
    cells += [number(row.median(column)) if column in row.samples else "" for column in report.columns]
    if len(report.columns) == 1:
        samples = row.samples[report.columns[0]]
        cells.append(f"{number(min(samples))} to {number(max(samples))}")
    if report.baseline:
        column = report.columns[0]
        cells.append(f"{row.median(column) / report.row(report.baseline).median(column):.2f}")
    return cells


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [_line(row, widths) for row in rows]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
