"""`analyze --html` and `--png`: the page opens offline in a real browser, says what happened, and trusts no name."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from service.browser import Watch, chromium

from triage_monitor.cli.analysis import Story
from triage_monitor.cli.report_words import summary
from triage_monitor.judge.stages import Stage, Transition

EVIL = "<img src=x onerror=alert(1)>\"'&"
FIGURES = {"score", "masses", "direction", "tail", "segments", "masked"}


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Synthetic: 12 updates of two responses, one of them with a name that is markup."""
    path = tmp_path / "<b>synthetic.jsonl"
    rows = [
        {"step": step, "advantage": side, "gap": [side * 0.5, -0.1, 0.2, side * 0.01] * 8, "response_id": name}
        for step in range(12)
        for side, name in ((-1, EVIL), (1, f"r{step}"))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_page_opens_offline_and_shows_names_as_text(cli, recording: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = cli("analyze", recording, "--html", page, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["run"] == "<b>synthetic"
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"<script|<img|<b>synth|javascript:", text)
    assert set(re.findall(r'\s(?:src|(?:xlink:)?href)="([^"#]{0,5})', text)) <= {"", "data:"}
    assert len(ids := re.findall(r'\sid="([^"]+)"', text)) == len(set(ids))
    with chromium() as browser:
        context = browser.new_context(offline=True, color_scheme="dark")
        watch = Watch(context.new_page(), "")
        watch.page.goto(page.as_uri())
        assert "<b>synthetic" in watch.page.locator("h1").inner_text()
        assert watch.page.locator(f"td:text-is({json.dumps(EVIL)})").count() == 1
        drawn = watch.page.locator("figure").evaluate_all("all => all.map(one => one.id)")
        assert set(drawn) == {f"figure-{name}" for name in FIGURES}
        assert watch.page.locator("figure svg").first.bounding_box()["width"] > 300
        assert watch.page.locator("img, script").count() == 0
        assert (watch.errors, watch.hosts) == ([], {""})


def test_each_figure_is_exported_as_png(cli, recording: Path, tmp_path: Path) -> None:
    done = cli("analyze", recording, "--png", tmp_path / "slides")
    assert done.code == 0, done.err
    files = {path.stem: path.read_bytes()[:8] for path in (tmp_path / "slides").iterdir()}
    assert files == dict.fromkeys(FIGURES, b"\x89PNG\r\n\x1a\n")


def test_without_matplotlib_the_extra_is_named_and_nothing_is_read(
    cli, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = cli("analyze", recording, "--html", tmp_path / "x.html")
    assert (done.code, done.out) == (2, "")
    assert "triage-monitor[plots]" in done.err
    assert not (tmp_path / "x.html").exists()


def window(**indicators: float | None) -> dict[str, object]:
    return {"step": 9, "stage": "pre_terminal", "indicators": indicators, "reasons": {}}


def test_summary_says_stage_shares_direction_and_what_explains_it() -> None:
    score = {"value": 1.25, "level": 1.0, "trend": 0.25, "mismatch_energy": 1.0, "grad_norm": 0.001}
    alarm = Transition(7, 1, Stage.HEALTHY, Stage.PRE_TERMINAL, "pre_terminal", "score 1.25", {"warning_score": score})
    values = {"rho_asym": 0.5, "rho_asym_low": 0.4, "rho_asym_high": 0.625, "rho_excess": 1.0, "abs_delta_mean": 0.02}
    document = {"windows": [window(**values)], "findings": []}
    said = summary(document, Story((alarm,), normal={"abs_delta_mean": 0.02}))
    assert said == [
        "This run shows the early signs of a collapse. Stage pre-terminal since update 7, read at update 9. "
        "The rule was 'pre terminal': score 1.25.",
        "The first pre-terminal verdict came at update 7, at a score of 1.25 (1 alarms), made of "
        "mismatch energy +1.00, trend over 25 updates +0.25.",
        "In the last window positive-advantage updates amplify the gap 2.00 times as much as negative ones "
        "(95% interval 1.60 to 2.50).",
        "Averages look normal: the mean |gap| is 1.00 times its baseline.",
        "Sign odds and response lengths explain that imbalance (rho_excess 1.00).",
        "No other cause was found in the columns.",
    ]


def test_interval_that_holds_one_leans_to_no_side() -> None:
    document = {"windows": [window(rho_asym=1.4, rho_asym_low=0.9, rho_asym_high=2.1)], "findings": []}
    said = " ".join(summary(document, Story()))
    assert "alike: rho_asym 1.40 [0.90, 2.10]" in said
    assert "explain that imbalance" not in said
