"""The demo's live terminal view: runs side by side, each number where the same number of the other run stands.

Draws what the sidecar says of each run (its HTTP answers) beside what the trainer said on its pipe; computes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from triage_monitor.cli.analysis_table import STAGE_STYLES

BARS = "▁▂▃▄▅▆▇█"
HISTORY = 32
SHOWN_EVENTS = 5
EVENT_WIDTH = 118
REWARD_UPDATES = 25


@dataclass(slots=True)
class RunView:
    """What is known of one run; `detail` is the sidecar's answer to GET /v1/runs/{run}."""

    name: str
    title: str
    updates: int
    detail: Mapping[str, Any] = field(default_factory=dict)
    step: int = -1
    warmup: str = ""
    seconds: float = 0.0
    rewards: list[float] = field(default_factory=list)
    reward_line: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    tail_line: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    events: list[str] = field(default_factory=list)
    done: bool = False

    @property
    def reward(self) -> float | None:
        newest = self.rewards[-REWARD_UPDATES:]
        return sum(newest) / len(newest) if newest else None

    def told(self, message: Mapping[str, Any]) -> None:
        """A line from the trainer."""
        if message["event"] == "warmup":
            self.warmup = f"warming up {message['done']}/{message['total']}, loss {message['loss']:.2f}"
        elif message["event"] == "update":
            self.step, self.warmup = message["step"], ""
            self.seconds += message["wall_seconds"]
            self.rewards.append(message["reward"])
            if self.step % max(1, self.updates // HISTORY) == 0 and self.reward is not None:
                self.reward_line.append(self.reward)
                if self.quantile("0.001") is not None:
                    self.tail_line.append(-(self.quantile("0.001") or 0.0))
        elif message["event"] == "end":
            self.done = True

    def indicator(self, name: str) -> float | None:
        value: float | None = (self.detail.get("window") or {}).get("indicators", {}).get(name)
        return value

    def quantile(self, q: str) -> float | None:
        value: float | None = (self.detail.get("window") or {}).get("quantiles", {}).get("all", {}).get(q)
        return value


def number(value: float | None, form: str = ".3g") -> str:
    return "-" if value is None else format(value, form)


def spark(values: Sequence[float], low: float | None = None, high: float | None = None) -> str:
    if not values:
        return ""
    bottom, top = min(values) if low is None else low, max(values) if high is None else high
    scale = (len(BARS) - 1) / (top - bottom) if top > bottom else 0.0
    return "".join(BARS[max(0, min(len(BARS) - 1, round((value - bottom) * scale)))] for value in values)


def draw(views: Sequence[RunView], address: str, elapsed_seconds: float) -> RenderableType:
    table = Table(box=None, pad_edge=False, expand=True, header_style="bold")
    table.add_column("", min_width=20, style="dim", no_wrap=True)
    for view in views:
        table.add_column(view.title, ratio=4, no_wrap=True)
    for label, cells in _rows(views):
        table.add_row(label, *cells)
    events = [Text(shortened(f"{view.name}: {event}")) for view in views for event in view.events[-SHOWN_EVENTS:]]
    head = Text(f"triage-monitor demo   sidecar {address}   {elapsed_seconds:.0f} s", style="bold")
    body: list[RenderableType] = [head, Text(), table]
    if events:
        body += [Text(), Text("what happened", style="bold"), *events]
    return Panel(Group(*body), border_style="dim")


def _rows(views: Sequence[RunView]) -> list[tuple[str, list[RenderableType]]]:
    rows: list[tuple[str, list[RenderableType]]] = [
        ("progress", [_progress(view) for view in views]),
        ("stage", [_stage(view) for view in views]),
        ("reward (25 updates)", [Text(number(view.reward, ".3f"), style="bold") for view in views]),
        ("", [Text(spark(view.reward_line, 0.0, 1.0), style="green") for view in views]),
        ("rho_asym [95%]", [_rho(view) for view in views]),
        ("  lengths·signs·rest", [_factors(view) for view in views]),
    ]
    plain = (
        ("rho_pressure", "rho_pressure"),
        ("mismatch energy", "mismatch_energy"),
        ("near zero", "near_zero_fraction"),
    )
    rows += [(label, [Text(number(view.indicator(name))) for view in views]) for label, name in plain]
    rows.append(
        ("q0.001 / q0.05", [Text(f"{number(v.quantile('0.001'))} / {number(v.quantile('0.05'))}") for v in views])
    )
    deepest = max((depth for view in views for depth in view.tail_line), default=1.0)
    rows.append(("", [Text(spark(view.tail_line, 0.0, deepest), style="yellow") for view in views]))
    rows.append(("parameters", [_versions(view) for view in views]))
    rows.append(("", [_parameters(view) for view in views]))
    return rows


def _progress(view: RunView) -> Text:
    if view.warmup:
        return Text(view.warmup)
    done = view.step + 1
    filled = round(24 * done / view.updates)
    return Text("━" * filled, style="cyan") + Text("━" * (24 - filled), style="dim") + Text(f" {done}/{view.updates}")


def _stage(view: RunView) -> Text:
    stage = view.detail.get("stage", "-")
    return Text(stage.replace("_", " "), style=STAGE_STYLES.get(stage, "dim"))


def _rho(view: RunView) -> Text:
    low, high = view.indicator("rho_asym_low"), view.indicator("rho_asym_high")
    interval = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    return Text(number(view.indicator("rho_asym"), ".3f") + interval)


def _factors(view: RunView) -> Text:
    names = ("advantage_mass_ratio", "sign_odds_blind", "rho_excess")
    return Text(" x ".join(number(view.indicator(name), ".3f") for name in names))


def shortened(text: str) -> str:
    return text if len(text) <= EVENT_WIDTH else f"{text[: EVENT_WIDTH - 3]}..."


def _versions(view: RunView) -> Text:
    if not view.detail.get("params"):
        return Text("-")
    version = view.detail["params"]["version"]
    applied = (view.detail.get("params_applied") or {}).get("version")
    pushed = f"v{version} pushed" if version else "none pushed"
    return Text(pushed + (f", v{applied} in force" if applied is not None else ""))


def _parameters(view: RunView) -> Text:
    params = view.detail.get("params")
    if not params:
        return Text("-")
    gate = f"gate w_min {params['gate']['w_min']:.2g}" if params["gate"]["enabled"] else "gate off"
    repair = f"repair {params['repair']['lambda_rep']:.3g}" if params["repair"]["enabled"] else "repair off"
    return Text(f"{gate}, {repair}")
