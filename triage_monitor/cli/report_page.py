"""`analyze --html`: one self-contained page a researcher can mail. No script, no request, nothing to install.

Everything that came from a recording (run, response ids, engines, evidence) is escaped; a content security policy in
the page forbids scripts and every load, so even a slip could not act. Figures are inline SVG. Light and dark follow the
reader's system.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from triage_monitor.cli import report_figures as figures
from triage_monitor.cli import report_words as said
from triage_monitor.cli.analysis import Analysis, judge_settings
from triage_monitor.cli.analysis_table import FACTORS, chosen, evidence_text
from triage_monitor.judge.score import SCORE
from triage_monitor.summary.worst import WorstResponse

CROWDING = ("top5_tail_share", "persistence", "masked_response_fraction")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
STYLE = """
:root { --bg: #f4f6f8; --panel: #fff; --ink: #18202a; --soft: #56616f; --line: #dce1e7; --grid: #e3e8ee;
  --ok: #00694c; --watch: #8a5300; --alarm: #a83c00; --dead: #8c1d4f; --wait: #4a5664; color-scheme: light; }
@media (prefers-color-scheme: dark) { :root { --bg: #0e1217; --panel: #161c23; --ink: #e7ecf2; --soft: #a3afbd;
  --line: #2a333e; --grid: #2a333e; --ok: #5fd3ae; --watch: #f0b94a; --alarm: #ff9d66; --dead: #f592bd; --wait: #aab6c4;
  color-scheme: dark; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 980px; margin: 0 auto; padding: 20px 14px 60px; }
h1 { font-size: 22px; overflow-wrap: anywhere; } h2 { font-size: 17px; margin: 30px 0 8px; }
section, figure { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px; }
figure { margin: 12px 0; } figure svg { width: 100%; height: auto; } figcaption { color: var(--soft); font-size: 13px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 10px 3px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } th.word, td.word { text-align: left; }
td.text { text-align: left; white-space: normal; min-width: 22em; overflow-wrap: anywhere; }
.stage { font-weight: 700; } .healthy { color: var(--ok); } .drift { color: var(--watch); }
.pre_terminal { color: var(--alarm); } .terminal { color: var(--dead); } .quiet { color: var(--soft); }
.warming_up, .not_observable { color: var(--wait); } dt { font-weight: 650; margin-top: 12px; } dd { margin: 0 0 4px; }
@media print { body { background: #fff; } section, figure { break-inside: avoid; } }
"""


def write_page(analysis: Analysis, path: Path, *, window: int, rows: int) -> None:
    """Raises ConfigError when matplotlib is not installed, OSError when the file cannot be written."""
    path.write_text(page(analysis, window=window, rows=rows), encoding="utf-8")


def write_pngs(analysis: Analysis, directory: Path, *, window: int) -> list[Path]:
    course = figures.course_of(analysis.document, score_levels(window))
    shown = figures.chosen(course)
    figures.drawable()
    directory.mkdir(parents=True, exist_ok=True)
    return [figures.png(figure, course, directory) for figure in shown]


def score_levels(window: int) -> dict[str, float]:
    detector = judge_settings(window).detector
    rules = {"drift": detector.drift, "pre_terminal": detector.pre_terminal}
    return {stage: item.level for stage, rule in rules.items() for item in rule.criteria if item.indicator == SCORE}


def page(analysis: Analysis, *, window: int, rows: int) -> str:
    document, story = analysis.document, analysis.story
    run, stage = str(document["run"]), said.last_stage(document)
    parts = [
        f"<h1>Run {escape(run)} <span class='stage {stage.value}'>{escape(said.stage_word(stage.value))}</span></h1>",
        f"<p class='quiet'>{len(document['updates'])} updates, trailing windows of up to {window}."
        f"{_settings(story)}</p>",
        _section("summary", "Summary", "".join(f"<p>{escape(text)}</p>" for text in said.summary(document, story))),
        _section("timeline", "Stages", _timeline(analysis)),
        _section("findings", "Findings and what to do", _findings(document["findings"])),
        "<h2>Figures</h2><p class='quiet'>Each point is a trailing window. Shaded: drift, pre-terminal, terminal, "
        "as in the table of stages.</p>",
        *_figures(document, window),
        *_worst(analysis),
        _section("windows", "Windows", _windows(document, rows)),
    ]
    title = f"triage-monitor: {run}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:,"><style>{STYLE}</style></head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _section(name: str, title: str, content: str) -> str:
    return f'<h2 id="{name}">{escape(title)}</h2><section>{content}</section>'


def _settings(story: Any) -> str:
    told = ", ".join(f"{name} {value}" for name, value in story.settings.items())
    return f" Sampling settings: {escape(told)}." if told else ""


def _timeline(analysis: Analysis) -> str:
    if not analysis.story.transitions:
        return "<p>No change of stage: the run was warming up throughout.</p>"
    rows = [
        (
            _num(item.step),
            _num(item.attempt),
            _stage(item.to_stage.value),
            _word(said.words(item.rule)),
            _text(item.text),
        )
        for item in analysis.story.transitions
    ]
    return _table(("update", "attempt", "-stage", "-rule", "-evidence"), rows)


def _findings(findings: Sequence[Mapping[str, Any]]) -> str:
    if not findings:
        return "<p>No cause was found in the columns.</p>"
    entries = []
    for item in findings:
        evidence = ", ".join(f"{name} {evidence_text(value)}" for name, value in item["evidence"].items())
        entries.append(
            f"<dt>{escape(said.words(item['cause']))} ({escape(item['kind'])}, from update {item['step']}, "
            f"{escape(item['confidence'])} confidence)</dt><dd>{escape(item['text'])}</dd>"
            f"<dd>What to do: {escape(item['remedy'])}</dd><dd class='quiet'>{escape(evidence)}</dd>"
        )
    return f"<dl>{''.join(entries)}</dl>"


def _figures(document: Mapping[str, Any], window: int) -> Iterable[str]:
    course = figures.course_of(document, score_levels(window))
    for figure in figures.chosen(course):
        drawing, note = figures.svg(figure, course)
        label = escape(figure.title, quote=True)
        yield (
            f'<figure id="figure-{figure.name}"><div role="img" aria-label="{label}">{drawing}</div>'
            f"<figcaption><b>{escape(figure.title)}.</b> {escape(figure.caption + note)}</figcaption></figure>"
        )


def _worst(analysis: Analysis) -> Iterable[str]:
    """Of the update that alarmed first and of the newest."""
    keys = list(analysis.story.encoded_worst)
    alarm = said.first_alarm(analysis.story)
    wanted = {} if alarm is None else {(alarm.attempt, alarm.step): "the update of the first alarm"}
    if keys:
        wanted[max(keys)] = "the newest update"
    for (attempt, step), which in wanted.items():
        responses = analysis.story.worst((attempt, step))
        title = f"Worst responses of {which}, {step}"
        content = _responses(responses) if responses else "<p>No response has a token in the amplifying tail.</p>"
        yield _section(f"worst-{attempt}-{step}", title, content)


def _responses(responses: Sequence[WorstResponse]) -> str:
    rows = [
        (
            _word("-" if item.response_id is None else item.response_id), _word(item.engine or "-"), _num(item.row),
            _num(item.advantage), _num(item.tail_gap), _num(item.mean_gap), _num(item.tail_tokens),
            _num(item.valid_tokens), _num(item.heavy), _num(item.eligible),
        )
        for item in responses
    ]  # fmt: skip
    heads = ("-response", "-engine", "row", "advantage", "tail gap, nats", "mean gap", "tail tokens", "tokens")
    return _table((*heads, "heavy segments", "of"), rows)


def _windows(document: Mapping[str, Any], rows: int) -> str:
    windows = document["windows"]
    several = len({item["attempt"] for item in windows}) > 1
    shown = [
        (
            _num(f"{item['attempt']}:{item['step']}" if several else item["step"]), _num(item["updates"]),
            _stage(item["stage"]), _num((item["score"] or {}).get("value")), _num(item["indicators"].get("rho_asym")),
            _num(item["indicators"].get("rho_asym_low")), _num(item["indicators"].get("rho_asym_high")),
            *(_num(item["indicators"].get(name)) for name in FACTORS), _num(item["quantiles"]["all"].get("0.05")),
            *(_num(item["indicators"].get(name)) for name in CROWDING),
        )
        for item in (windows[place] for place in chosen(windows, rows))
    ]  # fmt: skip
    heads = ("update", "merged", "-stage", "score", "rho_asym", "low", "high", *FACTORS, "q0.05", "top 5% share")
    note = (
        f"<p class='quiet'>{len(shown)} of {len(windows)} windows: first, last, changes of stage, evenly between.</p>"
    )
    return note + _table((*heads, "persistence", "masked responses"), shown)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A head that begins with `-` stands over words."""
    head = "".join(
        f'<th scope="col" class="word">{escape(name[1:])}</th>'
        if name[0] == "-"
        else f'<th scope="col">{escape(name)}</th>'
        for name in heads
    )
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _num(value: float | str | None) -> str:
    text = "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"<td>{escape(text)}</td>"


def _word(text: str) -> str:
    return f'<td class="word">{escape(text)}</td>'


def _text(text: str) -> str:
    return f'<td class="text">{escape(text)}</td>'


def _stage(stage: str) -> str:
    return f'<td class="word stage {escape(stage, quote=True)}">{escape(said.stage_word(stage))}</td>'
