"""Recordings in every form of the contract, built by hand or by other writers, read back as updates."""

from __future__ import annotations

import json
import math
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arrow_tables import stream, table

from triage_monitor.errors import InputError
from triage_monitor.storage.recordings import iter_updates
from triage_monitor.storage.recordings_order import index_updates, iter_ordered

ROWS = [
    {"step": 1, "advantage": 1.0, "gap": [0.5, -0.25]},
    {"step": 1, "advantage": -1.0, "gap": [2.0]},
    {"step": 2, "advantage": 0.5, "gap": []},
    {"step": 3, "advantage": -2.0, "gap": [1.0, None, 4.0]},
]
EXPECTED = [(1, [0.5, -0.25, 2.0], [0, 2, 3]), (2, [], [0, 0]), (3, [1.0, 4.0], [0, 3])]


def written(directory: Path, form: str) -> Path:
    path = directory / f"recording.{form}"
    frame = pl.DataFrame(ROWS, schema={"step": pl.Int64, "advantage": pl.Float64, "gap": pl.List(pl.Float32)})
    if form == "parquet":
        frame.write_parquet(path)
    elif form == "small-row-groups":
        pq.write_table(frame.to_arrow(), path, row_group_size=1)
    elif form == "arrow":
        frame.write_ipc(path)
    elif form == "arrow-zstd":
        frame.write_ipc(path, compression="zstd")
    elif form == "stream":
        frame.write_ipc_stream(path)
    elif form == "categorical-stream":
        frame.with_columns(pl.lit("g").cast(pl.Categorical).alias("group")).write_ipc_stream(path)
    else:
        path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n")
    return path


def found(paths: object, **options: str) -> list[tuple[int, list[float], list[int]]]:
    return [
        (update.step, [x for x in update.rows.gap.tolist() if not math.isnan(x)], update.rows.offsets.tolist())
        for update in iter_updates(paths, **options)
    ]


@pytest.mark.parametrize(
    "form", ["parquet", "small-row-groups", "arrow", "arrow-zstd", "stream", "categorical-stream", "jsonl"]
)
def test_every_form_holds_the_same_updates(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, form)
    assert found(path) == EXPECTED
    last = list(iter_updates(path))[-1]
    assert last.rows.mask.tolist() == [True, False, True]
    assert (last.attempt, last.attempt_given, last.first_row, last.run) == (1, False, 3, "recording")


def test_form_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, "parquet").rename(tmp_path / "recording.jsonl")
    assert found(path) == EXPECTED
    assert found(path, format="parquet") == EXPECTED
    with pytest.raises(InputError, match="is parquet, not jsonl"):
        found(path, format="jsonl")
    with pytest.raises(InputError, match="csv"):
        found(path, format="csv")


def test_directories_and_patterns_are_read_in_natural_order(tmp_path: Path) -> None:
    for step in (10, 9, 2):
        row = {"step": step, "advantage": 1.0, "gap": [0.5]}
        (tmp_path / f"part-{step}.jsonl").write_text(json.dumps(row))
    (tmp_path / "notes.txt").write_text("not a recording")
    (tmp_path / ".part-3.jsonl.tmp").write_text("half")
    (tmp_path / ".hidden.jsonl").write_text("half")
    assert [step for step, *_ in found(tmp_path)] == [2, 9, 10]
    assert [step for step, *_ in found(tmp_path / "part-*0.jsonl")] == [10]
    assert [step for step, *_ in found([tmp_path / "part-9.jsonl", tmp_path])] == [9, 2, 10]


def test_rows_of_one_update_in_several_batches_and_files_are_one_update(tmp_path: Path) -> None:
    parts = [table([[0.5]], [1.0], step=[7]), table([[0.25]], [2.0], step=[7]), table([[1.0]], [3.0], step=[7])]
    (tmp_path / "a.arrows").write_bytes(stream(*(part.to_batches()[0] for part in parts[:2])))
    pq.write_table(parts[2], tmp_path / "b.parquet")
    assert found(tmp_path) == [(7, [0.5, 0.25, 1.0], [0, 1, 2, 3])]


def test_update_that_comes_back_is_another_shard_of_it(tmp_path: Path) -> None:
    for rank in (0, 1):
        pq.write_table(table([[0.5], [float(rank)]], [1.0, 1.0], step=[1, 2]), tmp_path / f"rank-{rank}.parquet")
    assert [(step, gap) for step, gap, _ in found(tmp_path)] == [(1, [0.5]), (2, [0.0]), (1, [0.5]), (2, [1.0])]


def test_shuffled_rows_of_a_batch_are_put_together(tmp_path: Path) -> None:
    rows = table(
        [[1.0], [2.0], [3.0], [4.0]], [1.0] * 4, step=[2, 1, 2, 1], attempt=[1] * 4, engine=["a", "b", "c", "d"]
    )
    pq.write_table(rows, tmp_path / "shuffled.parquet")
    updates = list(iter_updates(tmp_path))
    assert [(u.step, u.rows.gap.tolist(), u.rows.engines.tolist()) for u in updates] == [
        (1, [2.0, 4.0], ["b", "d"]),
        (2, [1.0, 3.0], ["a", "c"]),
    ]


def test_files_of_ranks_are_taken_in_lockstep_and_parts_one_after_another(tmp_path: Path) -> None:
    for rank in (0, 1):
        steps = [1, 2, 3] if rank == 0 else [2, 3]
        pq.write_table(table([[0.5]] * len(steps), [1.0] * len(steps), step=steps), tmp_path / f"rank-{rank}.parquet")
    pq.write_table(table([[0.5]], [1.0], step=[0]), tmp_path / "the-first.parquet")
    index = index_updates(tmp_path)
    assert index.shards == {(1, 0): 1, (1, 1): 1, (1, 2): 2, (1, 3): 2}
    assert index.first_steps == {1: 0}
    assert [update.step for update in iter_ordered(index)] == [0, 1, 2, 2, 3, 3]


def test_files_of_two_runs_are_refused(tmp_path: Path) -> None:
    for run in ("a", "b"):
        pq.write_table(
            table([[0.5]], [1.0], step=[1]).replace_schema_metadata({"run": run}), tmp_path / f"{run}.parquet"
        )
    with pytest.raises(InputError, match="run 'b'"):
        found(tmp_path)


def test_settings_and_run_come_from_the_schema(tmp_path: Path) -> None:
    metadata = {"run": "run-7", "temperature": "0.7"}
    pq.write_table(table([[0.5]], [1.0], step=[1]).replace_schema_metadata(metadata), tmp_path / "x.parquet")
    update = next(iter_updates(tmp_path))
    assert (update.run, update.rows.settings) == ("run-7", {"temperature": "0.7"})


def error_of(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        found(path)
    return caught.value


def test_wrong_rows_are_named_by_file_row_and_column(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    rows = table([[0.5]] * 3 + [[0.5, 0.5]], [1.0] * 4, step=[1, 1, 2, 2], mask=[[True]] * 4)
    pq.write_table(rows, path, row_group_size=1)
    error = error_of(path)
    assert (error.path, error.row, error.column) == (str(path), 3, "mask")
    assert "1 entries where 'gap' has 2" in str(error)


def test_wrong_row_is_found_in_its_own_place_when_rows_are_shuffled(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table([[0.5], [0.5], None, [0.5]], [1.0] * 4, step=[2, 1, 2, 1]), path)
    assert (error_of(path).row, error_of(path).column) == (2, "gap")


@pytest.mark.parametrize(
    ("column", "values", "row", "words"),
    [
        ("step", [1, None], 1, "null"),
        ("step", [1.0, 1.5], 1, "1.5"),
        ("step", [1, -1], 1, "negative"),
        ("step", ["1", "2"], None, "string"),
        ("attempt", [1, None], 1, "null"),
    ],
)
def test_wrong_steps_and_attempts_are_refused(
    tmp_path: Path, column: str, values: list, row: int | None, words: str
) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table([[0.5], [0.5]], [1.0, 1.0], **({"step": [1, 1]} | {column: values})), path)
    error = error_of(path)
    assert (error.row, error.column) == (row, column)
    assert words in str(error)


def test_steps_as_whole_floats_are_taken(tmp_path: Path) -> None:
    pq.write_table(table([[0.5]], [1.0], step=[4.0]), tmp_path / "x.parquet")
    assert found(tmp_path)[0][0] == 4


def test_recording_without_steps_or_with_a_slip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table([[0.5]], [1.0]), path)
    assert error_of(path).column == "step"
    pq.write_table(table([[0.5]], [1.0], step=[1], masks=[[True]]), path)
    assert "'mask'" in str(error_of(path))


@pytest.mark.parametrize("form", ["parquet", "arrow", "stream"])
def test_cut_files_are_refused(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, form)
    whole = path.read_bytes()
    for length in range(len(whole) - 1, 8, -max(len(whole) // 50, 1)):
        path.write_bytes(whole[:length])
        assert error_of(path).path == str(path)


@pytest.mark.parametrize("form", ["arrow", "stream"])
def test_files_with_flipped_bytes_never_crash(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, form)
    whole = path.read_bytes()
    for place in range(8, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        try:
            found(path)
        except InputError as error:
            assert error.path == str(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"step,gap\n", "no Arrow, Parquet or JSONL"),
        (b'[{"step": 1}]', "JSON array"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"PK\x03\x04", "zip"),
    ],
)
def test_other_files_are_named_for_what_they_are(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    assert words in str(error_of(path))


def test_missing_paths_and_empty_directories_are_refused(tmp_path: Path) -> None:
    assert "no such file" in str(error_of(tmp_path / "nowhere"))
    assert "no such file" in str(error_of(tmp_path / "*.parquet"))
    assert "holds no file" in str(error_of(tmp_path))


def test_list_forms_of_other_writers_are_read(tmp_path: Path) -> None:
    batch = pa.record_batch(
        {
            "step": pa.array([1, 1], pa.int32()),
            "advantage": pa.array([1.0, -1.0], pa.float32()),
            "gap": pa.array([[0.5], [0.25]], pa.list_(pa.float32(), 1)),
        }
    )
    (tmp_path / "x.arrows").write_bytes(stream(batch))
    assert found(tmp_path) == [(1, [0.5, 0.25], [0, 1, 2])]


def test_scattered_rows_with_a_column_that_cannot_be_put_in_order_are_refused_by_its_name(tmp_path: Path) -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([4], pa.int32()), pa.array([1.0]))
    columns = {"step": pa.array([1, 2, 1, 2]), "gap": pa.array([[0.5]] * 4, pa.list_(pa.float32()))}
    written_table = pa.table({**columns, "advantage": pa.array([1.0] * 4), "reward": runs})
    path = tmp_path / "run.arrow"
    with pa.ipc.new_file(str(path), written_table.schema) as out:
        out.write_table(written_table)
    with pytest.raises(InputError, match="put in order") as refused:
        list(iter_updates([path]))
    assert (refused.value.reason, refused.value.column, refused.value.path) == ("wrong_type", "reward", str(path))
