"""The series table that `analyze --series` writes."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from triage_monitor.errors import InputError
from triage_monitor.storage.series_file import write_series

REPORT = {"step": 4, "attempt": 0, "indicators": {"rho_asym": None, "kl_k1": 0.5}, "quantiles": {"all": {"0.05": -0.2}}}
DOCUMENT = {"updates": [REPORT], "windows": [REPORT | {"stage": "healthy", "updates": 1, "first_step": 4}]}


@pytest.mark.parametrize("name", ["series.parquet", "series.csv"])
def test_series_are_one_row_an_update_and_scope_with_nulls_for_absent_values(tmp_path: Path, name: str) -> None:
    write_series(DOCUMENT, tmp_path / name)
    frame = pl.read_parquet(tmp_path / name) if name.endswith("parquet") else pl.read_csv(tmp_path / name)
    assert frame["scope"].to_list() == ["update", "window"]
    assert frame["stage"].to_list() == [None, "healthy"]
    assert frame["rho_asym"].to_list() == [None, None]
    assert frame["kl_k1"].to_list() == [0.5, 0.5]
    assert frame["q0.05_all"].to_list() == [-0.2, -0.2]
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_unknown_ending_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.parquet or \.csv, not '\.xlsx'"):
        write_series(DOCUMENT, tmp_path / "series.xlsx")
