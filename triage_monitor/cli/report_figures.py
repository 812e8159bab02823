"""The figures of a run's report, drawn from the document of `analyze`: inline SVG for the page, PNG for slides.

Each step stands once, as its newest attempt reported it. The stage in force is shaded behind the lines and named in the
page's timeline, so that nothing is said by colour alone; lines differ by dash too. A value that is not known leaves a
gap; on a log axis a value that is not positive cannot be shown, and the caption says how many were left out. Text and
grid of the SVG take the page's colours, so it is readable in light and dark. matplotlib is imported when drawing.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from triage_monitor.cli.report_words import SHARES
from triage_monitor.errors import ConfigError

MOST_POINTS = 1500  # of a line; more are thinned evenly, first and last kept
INK, GRID = "#010203", "#040506"  # stand for the page's own colours until the SVG is written
PRINTED = {INK: "#18202a", GRID: "#dddddd"}
BLUE, ORANGE, VERMILLION, GREEN, PURPLE, SKY = "#0072B2", "#C47A00", "#D55E00", "#009E73", "#B0568F", "#3C9BD6"
SHADES = {"drift": "#E69F00", "pre_terminal": "#D55E00", "terminal": "#8c1d4f", "not_observable": "#7a6fb0"}
SHARE_COLOURS = (BLUE, SKY, GREEN, ORANGE, PURPLE, "#7a7a7a", "#B8A000", VERMILLION, "#5b4a8a", "#00695c")
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Course:
    """The windows in force, by step; what the figures read."""

    windows: Sequence[Mapping[str, Any]]
    levels: Mapping[str, float]  # of the score, by stage

    @property
    def steps(self) -> list[int]:
        return [window["step"] for window in self.windows]

    def indicator(self, name: str) -> list[float | None]:
        return [window["indicators"].get(name) for window in self.windows]

    def quantile(self, probability: str, side: str) -> list[float | None]:
        return [window["quantiles"][side].get(probability) for window in self.windows]

    def share(self, name: str) -> list[float | None]:
        return [(window["score"] or {}).get("shares", {}).get(name) for window in self.windows]

    def score(self) -> list[float | None]:
        return [(window["score"] or {}).get("value") for window in self.windows]


@dataclass(frozen=True, slots=True)
class Figure:
    """`draw` fills the panels (axes), top to bottom, and returns what the caption has to add."""

    name: str
    title: str
    caption: str
    panels: int
    draw: Callable[[Course, Sequence[Any]], str]


def course_of(document: Mapping[str, Any], levels: Mapping[str, float]) -> Course:
    in_force = {window["step"]: window for window in document["windows"]}  # in the order of attempts
    steps = _thinned(sorted(in_force))
    return Course([in_force[step] for step in steps], levels)


def svg(figure: Figure, course: Course) -> tuple[str, str]:
    """(the SVG element, what the caption has to add)."""
    drawn, note = _drawn(figure, course)
    sink = io.StringIO()
    with _matplotlib().rc_context({"svg.fonttype": "none", "svg.hashsalt": figure.name}):
        drawn.savefig(sink, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = sink.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor").replace(GRID, "var(--grid)")
    return text.replace('id="', f'id="{figure.name}-').replace("url(#", f"url(#{figure.name}-").replace(
        'href="#', f'href="#{figure.name}-'
    ), note


def png(figure: Figure, course: Course, directory: Path) -> Path:
    drawn, _ = _drawn(figure, course, PRINTED)
    path = directory / f"{figure.name}.png"
    drawn.savefig(path, format="png", dpi=160)
    return path


def chosen(course: Course) -> list[Figure]:
    """Those that have something to show: the trainer's signals only when they were sent."""
    told = any(value is not None for name in ("reward_mean", "grad_norm") for value in course.indicator(name))
    return [figure for figure in FIGURES if figure.name != "trainer" or told]


def drawable() -> None:
    """Raises ConfigError when matplotlib is not installed."""
    _matplotlib()


def _drawn(figure: Figure, course: Course, colours: Mapping[str, str] | None = None) -> tuple[Any, str]:
    _matplotlib()
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(8.6, 1.0 + 2.2 * figure.panels), layout="constrained")
    panels = canvas.subplots(figure.panels, 1, sharex=True, squeeze=False)[:, 0].tolist()
    note = figure.draw(course, panels)
    for axes in panels:
        _dress(axes, course, colours or {INK: INK, GRID: GRID})
    panels[-1].set_xlabel("update", color=(colours or {}).get(INK, INK))
    return canvas, note


def _dress(axes: Any, course: Course, colours: Mapping[str, str]) -> None:
    ink = colours[INK]
    _shade(axes, course)
    axes.grid(axis="y", color=colours[GRID], linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=ink, which="both", labelsize=9)
    axes.yaxis.label.set_color(ink)
    axes.yaxis.label.set_size(9)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(ink)
    for line in axes.get_lines():
        if line.get_color() == INK:
            line.set_color(ink)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8, labelcolor=ink)


def _shade(axes: Any, course: Course) -> None:
    steps, stages = course.steps, [window["stage"] for window in course.windows]
    starts = [0, *(place for place, (a, b) in enumerate(pairwise(stages), 1) if a != b), len(stages)]
    for first, end in pairwise(starts):
        if stages[first] in SHADES:
            axes.axvspan(steps[first], steps[min(end, len(steps) - 1)], color=SHADES[stages[first]], alpha=0.12, lw=0)


def _line(axes: Any, course: Course, values: Values, label: str, colour: str, dash: str = "-") -> None:
    axes.plot(course.steps, _gaps(values), label=label, color=colour, linestyle=dash, linewidth=1.6)


def _gaps(values: Values) -> list[float]:
    """matplotlib's form of a value that is not known: no line there."""
    return [math.nan if value is None else value for value in values]


def _positive(values: Values) -> tuple[list[float | None], int]:
    kept = [value if value is not None and value > 0 else None for value in values]
    return kept, sum(value is not None and value <= 0 for value in values)


def _logarithmic(axes: Any, *shown: Values) -> None:
    if any(value is not None for values in shown for value in values):
        axes.set_yscale("log")


def _left_out(count: int) -> str:
    return f" {count} values of 0 or less have no place on the log axis." if count else ""


def _masses(course: Course, panels: Sequence[Any]) -> str:
    (axes,) = panels
    for name, label, colour, dash in (
        ("mass_a_neg", "amplifying, A < 0", VERMILLION, "-"),
        ("mass_a_pos", "amplifying, A > 0", BLUE, "--"),
        ("mass_c_neg", "contracting, A < 0", ORANGE, "-."),
        ("mass_c_pos", "contracting, A > 0", GREEN, ":"),
    ):
        _line(axes, course, course.indicator(name), label, colour, dash)
    axes.set_ylabel("share of the advantage mass")
    return ""


def _direction(course: Course, panels: Sequence[Any]) -> str:
    ratio, excess = panels
    rho, zeros = _positive(course.indicator("rho_asym"))
    low, high = _positive(course.indicator("rho_asym_low"))[0], _positive(course.indicator("rho_asym_high"))[0]
    ratio.fill_between(course.steps, _gaps(low), _gaps(high), color=VERMILLION, alpha=0.25, lw=0, label="95% interval")
    _line(ratio, course, rho, "rho_asym", VERMILLION)
    blind, _ = _positive(course.indicator("sign_odds_blind"))
    _line(ratio, course, blind, "sign odds, blind", BLUE, ":")
    _logarithmic(ratio, rho)
    left, more = _positive(course.indicator("rho_excess"))
    _line(excess, course, left, "rho_excess", PURPLE)
    _logarithmic(excess, left)
    for axes, label in ((ratio, "rho_asym"), (excess, "rho_excess")):
        axes.axhline(1.0, color=INK, linewidth=0.8, linestyle="--")
        axes.set_ylabel(label)
    return _left_out(zeros + more)


def _tail(course: Course, panels: Sequence[Any]) -> str:
    left_out = 0
    for axes, probability in zip(panels, ("0.05", "0.001"), strict=True):
        shown = []
        for side, label, colour, dash in (
            ("all", "all tokens", INK, "-"), ("neg", "A < 0", VERMILLION, "--"), ("pos", "A > 0", BLUE, ":"),
        ):  # fmt: skip
            values = [None if value is None else -value for value in course.quantile(probability, side)]
            kept, dropped = _positive(values)
            left_out += dropped
            shown.append(kept)
            _line(axes, course, kept, label, colour, dash)
        _logarithmic(axes, *shown)
        axes.set_ylabel(f"-q{probability}, nats")
    return _left_out(left_out)


def _segments(course: Course, panels: Sequence[Any]) -> str:
    share, persistence = panels
    _line(share, course, course.indicator("top5_tail_share"), "top 5% of segments", VERMILLION)
    share.axhline(0.05, color=INK, linewidth=0.8, linestyle="--")
    share.set_ylabel("share of tail tokens")
    _line(persistence, course, course.indicator("persistence"), "persistence", BLUE)
    persistence.axhline(1.0, color=INK, linewidth=0.8, linestyle="--")
    persistence.set_ylabel("persistence, ratio")
    return ""


def _masked(course: Course, panels: Sequence[Any]) -> str:
    masked, heavy = panels
    _line(masked, course, course.indicator("masked_response_fraction"), "masked responses", VERMILLION)
    masked.set_ylabel("share")
    _line(heavy, course, course.indicator("heavy_segment_fraction"), "heavy segments", BLUE)
    _line(heavy, course, course.indicator("near_zero_fraction"), "tokens near zero", GREEN, "--")
    heavy.set_ylabel("share")
    return ""


def _score(course: Course, panels: Sequence[Any]) -> str:
    whole, parts = panels
    _line(whole, course, course.score(), "warning score", INK)
    for (stage, level), dash in zip(sorted(course.levels.items()), ("--", ":"), strict=False):
        whole.axhline(level, color=SHADES.get(stage, VERMILLION), linewidth=1.0, linestyle=dash, label=f"{stage} level")
    whole.set_ylabel("score; 1 alarms")
    for place, (name, label) in enumerate(SHARES.items()):
        values = course.share(name)
        if any(values):
            _line(parts, course, values, label, SHARE_COLOURS[place], ("-", "--", ":")[place % 3])
    parts.set_ylabel("its shares")
    return ""


def _trainer(course: Course, panels: Sequence[Any]) -> str:
    reward, norm = panels
    _line(reward, course, course.indicator("reward_mean"), "mean reward", GREEN)
    values, zeros = _positive(course.indicator("grad_norm"))
    _line(norm, course, values, "gradient norm", PURPLE)
    _logarithmic(norm, values)
    for axes, label, shown in (
        (reward, "mean reward", course.indicator("reward_mean")),
        (norm, "gradient norm", values),
    ):
        sent = any(value is not None for value in shown)
        axes.set_ylabel(label if sent else f"{label}: not sent")
    return _left_out(zeros)


EXCESS = "rho_asym with its 95% interval; rho_excess is what sign odds and lengths leave."
EVEN = "Dashed: tail tokens spread evenly, heavy segments independent."
HIDDEN = "Responses with a heavy segment whose mean gap looks small; and how common heavy is."
SUM = "The sum alarms at 1; the shares say what it is made of."
FIGURES = (
    Figure("score", "Early-warning score and its shares", SUM, 2, _score),
    Figure("masses", "Directional mass by window", "Amplifying: advantage and gap of one sign.", 1, _masses),
    Figure("direction", "Direction", EXCESS, 2, _direction),
    Figure("tail", "The negative tail", "How far the learner falls below the sampler, on a log axis.", 2, _tail),
    Figure("segments", "Concentration and persistence", EVEN, 2, _segments),
    Figure("masked", "Masked responses", HIDDEN, 2, _masked),
    Figure("trainer", "What the trainer sent", "Mean reward and gradient norm, over the same windows.", 2, _trainer),
)


def _thinned(steps: list[int]) -> list[int]:
    if len(steps) <= MOST_POINTS:
        return steps
    return [steps[round(place * (len(steps) - 1) / (MOST_POINTS - 1))] for place in range(MOST_POINTS)]


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError(
            "a report's figures need matplotlib, which is not installed: pip install 'triage-monitor[plots]'"
        ) from error
    return matplotlib
