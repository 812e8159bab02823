"""The terminal's form of a run, one update, and a comparison. Text of trainers is shown without control characters."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from triage_monitor.cli.analysis_table import STAGE_STYLES
from triage_monitor.cli.report_words import SHARES, stage_word

SHOWN = ("rho_excess", "rho_pressure", "mismatch_energy", "near_zero_fraction", "abs_delta_mean", "top5_tail_share")
SHOWN_RUN = (*SHOWN, "persistence", "masked_response_fraction", "reward_mean", "grad_norm")
SHOWN_CELLS = 3


def plain(text: object) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in str(text))


def number(value: float | str | None) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else plain(value)


def run_view(detail: Mapping[str, Any], trouble: str = "") -> RenderableType:
    window, newest = detail["window"] or {}, detail["last_update"] or {}
    values, score = window.get("indicators", {}), window.get("score") or {}
    head = Text(f"{plain(detail['run'])}  ", style="bold")
    head.append(stage_word(detail["stage"]), style=STAGE_STYLES.get(detail["stage"], "dim"))
    head.append(f"  update {number(newest.get('step'))}  attempt {detail['attempt']}  {plain(detail['why'])}")
    table = _table("", "window")
    table.add_row("warning score (1 alarms)", number(score.get("value")))
    for name, share in score.get("shares", {}).items():
        if abs(share) >= 0.005:
            table.add_row(f"  {SHARES.get(name, name)}", f"{share:+.2f}")
    ends = [number(values.get(name)) for name in ("rho_asym_low", "rho_asym_high")]
    table.add_row("rho_asym [95%]", f"{number(values.get('rho_asym'))} [{ends[0]}, {ends[1]}]")
    for name in SHOWN_RUN:
        table.add_row(name, number(values.get(name)))
    quantiles = window.get("quantiles", {}).get("all", {})
    table.add_row("q0.001 / q0.05", f"{number(quantiles.get('0.001'))} / {number(quantiles.get('0.05'))}")
    applied = (detail["params_applied"] or {}).get("version")
    table.add_row("parameters", f"v{detail['params_version']} pushed, v{number(applied)} in force")
    parts: list[RenderableType] = [head, table]
    parts += [Text(plain(f"{item['severity']}: {item['text']}")) for item in detail["notices"]]
    parts += [Text(plain(f"finding {item['cause']}: {item['text']}; {item['remedy']}")) for item in detail["findings"]]
    return Group(*parts, *([Text(plain(trouble), style="red")] if trouble else []))


def update_view(found: Mapping[str, Any]) -> RenderableType:
    update, window = found["update"], found["window"]
    head = f"{plain(found['run'])}  update {found['step']}  attempt {found['attempt']}  {stage_word(found['stage'])}"
    table = _table("indicator", "update", "window", "-why absent")
    for name, value in update["indicators"].items():
        reason = "" if value is not None else update["reasons"].get(name, "")
        table.add_row(name, number(value), number(window["indicators"].get(name)), plain(reason))
    parts: list[RenderableType] = [Text(head, style="bold"), table, _worst_head(found)]
    return Group(*parts, *(_response(item) for item in found["responses"]))


def _worst_head(found: Mapping[str, Any]) -> Text:
    if not found["responses"]:
        lacking = found.get("shards_with_rows") == 0
        return Text("no rows were sent, only summaries" if lacking else "no token in the amplifying tail")
    return Text(f"worst responses: amplifying tokens with |gap| of at least {found['tau_ana']:g} nats", style="bold")


def _response(item: Mapping[str, Any]) -> Text:
    name = "-" if item["response_id"] is None else plain(item["response_id"])
    engine = f" engine {plain(item['engine'])}" if item["engine"] else ""
    text = Text(f"{name} (shard {item['shard']} row {item['row']}{engine}) advantage {number(item['advantage'])}: ")
    text.append(f"{item['tail_gap']:.4g} nats in {item['tail_tokens']} of {item['valid_tokens']} tokens, ")
    text.append(f"{item['heavy']} of {item['eligible']} segments heavy")
    worst = sorted(item["cells"], key=lambda cell: -cell["tail"])
    for cell in worst[:SHOWN_CELLS]:
        span = f"positions {cell['first_position']}-{cell['last_position']}"
        text.append(f"\n  {span}: {cell['tail']} of {cell['tokens']} in the tail, lowest gap {number(cell['lowest'])}")
    if len(worst) > SHOWN_CELLS:
        text.append(f"\n  and {len(worst) - SHOWN_CELLS} more stretches")
    for one in item.get("worst_tokens", ()):
        token = "" if one["token"] is None else f"  {plain(repr(one['token']))}"
        text.append(f"\n    at {one['position']}: gap {one['gap']:+.4g}{token}")
    return text


def diff_view(found: Mapping[str, Any]) -> RenderableType:
    first, second = (plain(name) for name in found["runs"])
    head = f"{first} ({found['updates'][0]} updates) and {second} ({found['updates'][1]})"
    parts: list[RenderableType] = [Text(f"{head}: {found['shared_updates']} steps in both", style="bold")]
    settings = _table("-setting", f"-{first}", f"-{second}")
    for item in found["settings"]:
        told = ("not told" if value is None else plain(value) for value in item["values"])
        settings.add_row(plain(item["name"]), *told)
    parts.append(settings if found["settings"] else Text("no setting differs"))
    partings = _table("-indicator", "parts at", first, second)
    apart = sorted((item for item in found["partings"] if item["step"] is not None), key=lambda item: item["step"])
    for item in apart:
        partings.add_row(item["indicator"], str(item["step"]), *(number(value) for value in item["values"]))
    parts.append(partings if apart else Text("no indicator parts"))
    stages = _table(f"-{first}", f"-{second}")
    for pair in zip_longest(*found["stages"]):
        stages.add_row(*(_entered(item) for item in pair))
    return Group(*parts, stages if any(found["stages"]) else Text("no change of stage in either"))


def _entered(item: Mapping[str, Any] | None) -> Text:
    if item is None:
        return Text("")
    style = STAGE_STYLES.get(item["stage"], "dim")
    return Text(f"{item['step']}: {stage_word(item['stage'])} ({plain(item['rule'])})", style=style)


def _table(*heads: str) -> Table:
    """A head that begins with `-` stands over words; the first column does anyway."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(heads):
        words = name.startswith("-") or place == 0
        table.add_column(Text(name.removeprefix("-")), justify="left" if words else "right")
    return table
