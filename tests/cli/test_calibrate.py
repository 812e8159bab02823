"""`analyze --calibrate`: thresholds of the summary's spec from a recording's first window."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest


def test_calibration_is_printed_as_settings(cli, tmp_path: Path) -> None:
    gap = [k / 100 for k in range(-100, 101) if k]  # 95% of the magnitudes up to 0.95, 5% of the gaps up to -0.91
    path = tmp_path / "run.jsonl"
    rows = [{"step": step, "advantage": 1.0 - 2 * step, "gap": gap} for step in (0, 1)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    done = cli("analyze", path, "--calibrate")
    assert done.code == 0
    assert tomllib.loads(done.out)["summary"]["tau_ana"] == pytest.approx(0.95, rel=0.006)
    tail = re.search(r"gate\.tau_tail=(\S+)", done.out)
    assert tail is not None
    assert float(tail[1]) == pytest.approx(-0.91, rel=0.006)


def test_nothing_to_calibrate_on_prints_no_threshold(cli, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps({"step": 0, "advantage": 1.0, "gap": [], "mask": []}) + "\n", encoding="utf-8")
    done = cli("analyze", path, "--calibrate")
    assert tomllib.loads(done.out)["summary"] == {}


def test_updates_that_are_no_basis_are_left_out_and_said(cli, tmp_path: Path) -> None:
    gap = [k / 100 for k in range(-100, 101) if k]
    path = tmp_path / "run.jsonl"
    rows = [{"step": step, "advantage": 1.0, "gap": [0.0] * 200 if step % 2 else gap} for step in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    done = cli("analyze", path, "--calibrate")
    assert tomllib.loads(done.out)["summary"]["tau_ana"] == pytest.approx(0.95, rel=0.006)
    assert "left out 3 of the first 25 updates" in done.err
