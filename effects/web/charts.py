"""Charts as SVG of numbers alone: no text of a row is drawn, and a table or a sentence stands beside each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

BAR_WIDTH, BAR_GAP, BARS_HEIGHT = 6, 2, 36
POINTS_MAX = 120
CHART_STEP, CHART_HEIGHT = 12, 120
CELL_STEP = 10
_CELLS = {"done": "good", "refused": "bad", "unknown": "odd", "abandoned": "bad"}
CELL_HEIGHTS = {"done": 10.0, "refused": 20.0, "unknown": 20.0, "abandoned": 20.0}  # seen without colours, too
TRACK_WIDTH, TRACK_HEIGHT = 600, 12
_TRACK_MIN = 1.5  # of the width, so that a short phase is seen
PHASES_MAX = 12
_RECT = Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>')


def bars(points: Sequence[float | None], label: str) -> Markup:
    """Bars over time; a gap is no bar at all, and 0 is a line: nothing happened.

    Args:
        points: at most 120, oldest first; None where no worker measured.
        label: what it shows, for those who do not see it.
    """
    shown = list(points)[-POINTS_MAX:]
    most = max((point for point in shown if point is not None), default=0) or 1
    rects = [
        _RECT.format("bar", at * (BAR_WIDTH + BAR_GAP), BARS_HEIGHT - height, BAR_WIDTH, height)
        for at, point in enumerate(shown)
        if point is not None
        for height in [max(1.0, float(point) / most * BARS_HEIGHT)]
    ]
    width = max(1, len(shown)) * (BAR_WIDTH + BAR_GAP)
    return _svg("bars", width, BARS_HEIGHT, label, rects)


def stack(points: Sequence[Sequence[float] | None], kinds: Sequence[str], label: str) -> Markup:
    """Bars over time, each of parts on top of each other; a gap is no bar at all.

    Args:
        points: at most 120, oldest first; for each the size of every part, or None where no worker measured.
        kinds: what each part looks like, from the bottom up: the names of classes of the style sheet.
    """
    shown = list(points)[-POINTS_MAX:]
    most = max((sum(parts) for parts in shown if parts is not None), default=0) or 1
    rects = [_RECT.format("floor", 0, CHART_HEIGHT - 1, max(1, len(shown)) * CHART_STEP, 1)]
    for at, parts in enumerate(shown):
        top = float(CHART_HEIGHT)
        for kind, size in zip(kinds, parts or (), strict=False):
            height = size / most * (CHART_HEIGHT - 2)
            top -= height
            if size:
                rects.append(_RECT.format(f"part {kind}", at * CHART_STEP + 1, top, CHART_STEP - 2, max(height, 0.8)))
    return _svg("chart", max(1, len(shown)) * CHART_STEP, CHART_HEIGHT, label, rects)


def lines(series: Mapping[str, Sequence[float | None]], label: str) -> Markup:
    """Lines over time on one scale from 0; a gap breaks a line.

    Args:
        series: what a line looks like → its points, oldest first, as many for each line.
    """
    width = max(1, max((len(points) for points in series.values()), default=1)) * CHART_STEP
    most = max((point for points in series.values() for point in points if point is not None), default=0) or 1
    drawn = [_RECT.format("floor", 0, CHART_HEIGHT - 1, width, 1)]
    for kind, points in series.items():
        path, pen = [], "M"
        for at, point in enumerate(points[-POINTS_MAX:]):
            if point is None:
                pen = "M"
                continue
            x, y = (at + 0.5) * CHART_STEP, CHART_HEIGHT - 1 - point / most * (CHART_HEIGHT - 3)
            path.append(f"{pen}{x - 2:.1f} {y:.1f}H{x + 2:.1f}" if pen == "M" else f"L{x:.1f} {y:.1f}")
            pen = "L"
        drawn.append(Markup('<path class="line {}" d="{}"/>').format(kind, "".join(path)))
    return _svg("chart", width, CHART_HEIGHT, label, drawn)


def strip(states: Sequence[str], label: str) -> Markup:
    """A cell for each state of an effect, oldest first."""
    rects = [
        _RECT.format(f"cell {_CELLS.get(state, 'calm')}", at * CELL_STEP, 0, CELL_STEP - 2, CELL_HEIGHTS.get(state, 14))
        for at, state in enumerate(states[-POINTS_MAX:])
    ]
    return _svg("strip", max(1, len(states[-POINTS_MAX:])) * CELL_STEP, 20, label, rects)


def waterfall(phases_ms: Mapping[str, float], whole_ms: float, label: str) -> Markup:
    """The phases of an attempt, one behind the other, on the scale of the longest attempt of the page.

    Args:
        phases_ms: phase → milliseconds, `total` left aside; at most 12 are drawn.
        whole_ms: what the whole width stands for.
    """
    scale = TRACK_WIDTH / max(whole_ms, 0.001)
    rects, x = [], 0.0
    for at, milliseconds in enumerate(steps(phases_ms).values()):
        width = max(_TRACK_MIN, min(milliseconds * scale, TRACK_WIDTH))
        rects.append(_RECT.format(f"phase p{at % 6}", min(x, TRACK_WIDTH - _TRACK_MIN), 0, width, TRACK_HEIGHT))
        x += milliseconds * scale
    return _svg("waterfall", TRACK_WIDTH, TRACK_HEIGHT, label, rects)


def steps(phases_ms: Mapping[str, float]) -> dict[str, float]:
    """The phases that are drawn: numbers that a row may have, negative ones and infinity left out."""
    usual = {name: each for name, each in phases_ms.items() if name != "total" and 0 <= each < 1e12}
    return dict(list(usual.items())[:PHASES_MAX])


def unmeasured_ms(phases_ms: Mapping[str, float], seconds: float) -> float | None:
    """What an attempt took beside its phases; None where that is nothing, or no number."""
    milliseconds = seconds * 1000 - sum(steps(phases_ms).values())
    return milliseconds if 0.05 <= milliseconds < 1e12 else None


def _svg(kind: str, width: int, height: int, label: str, rects: Sequence[Markup]) -> Markup:
    head = Markup('<svg class="{}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">').format(
        kind, width, height, label
    )
    return head + Markup("").join(rects) + Markup("</svg>")
