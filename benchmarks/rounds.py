"""Interleaved rounds: every contender once a round, in an order that turns, and the median of the rounds.

Interleaving is what makes a ratio fair on a machine that is not ours alone: a slow minute hits all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Measure = Callable[[], "float | dict[str, float]"]


@dataclass(frozen=True)
class Contender:
    """One row of a comparison: who, with which settings, and how to measure it once."""

    name: str
    setting: str
    measure: Measure


@dataclass
class Row:
    """The samples of one contender, one a round, by column."""

    name: str
    setting: str
    samples: dict[str, list[float]] = field(default_factory=dict)

    def add(self, measured: float | dict[str, float], column: str) -> None:
        values = measured if isinstance(measured, dict) else {column: measured}
        for name, value in values.items():
            self.samples.setdefault(name, []).append(value)

    def median(self, column: str) -> float:
        return statistics.median(self.samples[column])


@dataclass(frozen=True)
class Goal:
    """A bound on a ratio, or on a time. An aim is judged like a goal and fails nothing."""

    text: str
    value: float
    bound: float
    at_least: bool = True
    aim: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def goal_and_aim(text: str, value: float, bounds: tuple[float, float], *, at_least: bool = True) -> list[Goal]:
    """A goal, and the aim beyond it."""
    goal, aim = bounds
    return [Goal(text, value, goal, at_least), Goal(text, value, aim, at_least, aim=True)]


@dataclass
class Report:
    """What one comparison found."""

    name: str
    title: str
    columns: Sequence[str]
    rows: list[Row]
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    baseline: str | None = None  # the row that every other is divided by
    decimals: int = 0

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def best(self, prefix: str) -> Row:
        """The quickest of the rows whose name begins with `prefix`: a peer's best setting."""
        column = self.columns[0]
        return max((row for row in self.rows if row.name.startswith(prefix)), key=lambda row: row.median(column))

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "rows": [
                {
                    "name": row.name,
                    "setting": row.setting,
                    "samples": row.samples,
                    "median": {column: row.median(column) for column in row.samples},
                }
                for row in self.rows
            ],
            "goals": [
                {"text": goal.text, "value": goal.value, "bound": goal.bound, "at_least": goal.at_least,
                 "aim": goal.aim, "met": goal.met}
                for goal in self.goals
            ],
            "notes": self.notes,
        }  # fmt: skip


def interleave(contenders: Sequence[Contender], rounds: int, column: str, say: Callable[[str], None]) -> list[Row]:
    """Measure every contender once a round, each round beginning with the next one of them."""
    rows = [Row(contender.name, contender.setting) for contender in contenders]
    pairs = list(zip(contenders, rows, strict=True))
    for number in range(rounds):
        turned = pairs[number % len(pairs) :] + pairs[: number % len(pairs)]
        for contender, row in turned:
            say(f"round {number + 1} of {rounds}: {contender.name}")
            row.add(contender.measure(), column)
    return rows
