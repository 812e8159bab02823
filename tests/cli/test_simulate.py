"""`simulate` writes a recording that every reader takes and that says in two places that it is synthetic."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

SMALL = ("--updates", 100, "--responses", 16, "--tokens", 128)


def test_a_synthetic_run_is_recorded_labelled_and_analysed(cli, tmp_path: Path) -> None:
    made = cli("simulate", "--model", "30B", "--out", tmp_path / "paper", "--rewards", *SMALL)
    assert made.code == 0, made.err
    assert "synthetic-paper-30B-s0: 100 synthetic updates" in made.out
    for path in (tmp_path / "paper").iterdir():
        metadata = pq.read_schema(path).metadata
        assert metadata[b"run"] == b"synthetic-paper-30B-s0"
        assert metadata[b"synthetic"].startswith(b"synthetic: generated")
        assert json.loads(metadata[b"settings"])["model"] == "30B"
    read = cli("analyze", tmp_path / "paper", "--json")
    document = json.loads(read.out)
    assert document["run"] == "synthetic-paper-30B-s0"
    assert [item["step"] for item in document["updates"]] == list(range(100))
    assert document["updates"][0]["counts"]["responses"] == 16
    assert document["updates"][0]["indicators"]["reward_mean"] is not None


def test_a_model_without_published_windows_ends_in_a_sentence(cli, tmp_path: Path) -> None:
    refused = cli("simulate", "--model", "7B", "--out", tmp_path / "x")
    assert refused.code == 2
    assert "published windows exist of 4B and 30B" in refused.err
    assert not (tmp_path / "x").exists()


def test_a_directory_with_something_in_it_is_left_alone(cli, tmp_path: Path) -> None:
    (tmp_path / "a0001-s000000000.parquet").write_text("mine")
    refused = cli("simulate", "--model", "4B", "--out", tmp_path, *SMALL)
    assert refused.code == 2
    assert str(tmp_path) in refused.err
    assert [path.name for path in tmp_path.iterdir()] == ["a0001-s000000000.parquet"]
