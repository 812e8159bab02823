"""The dashboards: the committed files are what the code makes, and every panel is whole."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from triage_monitor.dashboards.build import NAMES, dashboards, panels, queries, text_of

COMMITTED = Path(__file__).parents[2] / "dashboards"
PLACEHOLDERS = re.compile(r"todo|tbd|fixme|lorem|placeholder|\$\{DS_", re.IGNORECASE)


@pytest.fixture(scope="module")
def made() -> dict[str, dict[str, Any]]:
    return dashboards()


def test_committed_files_are_what_the_code_makes(made: dict[str, dict[str, Any]]) -> None:
    assert {path.stem for path in COMMITTED.glob("*.json")} == set(NAMES)
    for name, board in made.items():
        assert (COMMITTED / f"{name}.json").read_text(encoding="utf-8") == text_of(board), "dashboards build is due"


def test_every_panel_has_description_unit_queries_and_a_chosen_source(made: dict[str, dict[str, Any]]) -> None:
    for name, board in made.items():
        found = panels(board)
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        assert len({panel["title"] for panel in found}) == len(found) > 8, name
        for panel in found:
            assert len(panel["description"]) > 20, panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["targets"], panel["title"]
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
            for part in (panel, *panel["targets"]):
                assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert PLACEHOLDERS.search(text_of(board)) is None


def test_panels_do_not_overlap_and_fit_the_grid(made: dict[str, dict[str, Any]]) -> None:
    for board in made.values():
        cells: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            own = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                   for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
            assert place["x"] + place["w"] <= 24 and not own & cells, panel["title"]
            cells |= own


def test_dashboards_have_stable_uids_variables_and_links(made: dict[str, dict[str, Any]]) -> None:
    assert {board["uid"] for board in made.values()} == {"triage-fleet", "triage-run", "triage-research"}
    for board in made.values():
        variables = {item["name"] for item in board["templating"]["list"]}
        assert variables >= {"datasource", "page", "runbook"}
        addresses = [link["url"] for link in board["links"]]
        assert addresses[:2] == ["${page}/", "${runbook}#runbook"]
    assert {item["name"] for item in made["run"]["annotations"]["list"]} == {"Parameters", "Stage", "Alerts"}


def test_every_query_is_promql(made: dict[str, dict[str, Any]]) -> None:
    for board in made.values():
        for where, expr in queries(board):
            promql_parser.parse(re.sub(r"\$__\w+", "1m", expr)), where


def test_operators_dashboard_shows_what_the_issue_asks_for(made: dict[str, dict[str, Any]]) -> None:
    text = json.dumps(made["run"])
    for metric in (
        "triage_stage", "triage_rho_asym", "triage_rho_asym_low", "triage_rho_asym_high", "triage_mass_a_neg",
        "triage_mass_a_pos", "triage_mass_c_neg", "triage_mass_c_pos", "triage_gap_quantile",
        "triage_near_zero_fraction", "triage_heavy_segment_fraction", "triage_tail_concentration", "triage_persistence",
        "triage_params_version", "triage_params_applied_version", "triage_warning_score", "triage_warning_score_share",
    ):  # fmt: skip
        assert re.search(rf"\b{metric}\b", text), metric


def test_sdk_and_client_are_loaded_only_when_used() -> None:
    code = "import triage_monitor.cli.main as m, sys; m.build_app(); print(*(n for n in sys.modules if 'grafana' in n))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
