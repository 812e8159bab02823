"""`Monitor(mode="summary")` against the real sidecar: reduced on the device, with the raw form now and then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from service.served_process import served
from trainer.client_help import an_update, eventually
from trainer.edge_forms import assert_same_summary

from triage_monitor import Monitor
from triage_monitor.errors import ConfigError, InputError
from triage_monitor.summary.report import decode_report
from triage_monitor.summary.rows import SUMMARY_MIME, encode_arrays
from triage_monitor.summary.spec import DEFAULT_SPEC
from triage_monitor.trainer.form import checked_form

UNREACHABLE = "http://127.0.0.1:9"


def on_device(update: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.tensor(values) for name, values in update.items()}


def test_updates_reduced_on_the_device_read_as_the_raw_ones_and_none_counts_twice(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        raw = Monitor(server.address, run="raw")
        edge = Monitor(server.address, run="edge", mode="summary", reduce_on="device", raw_every=4)
        for step in range(8):
            update = an_update(step)
            assert raw.submit(step=step, **update) and edge.submit(step=step, **on_device(update))
        assert raw.close(60.0) and edge.close(60.0), edge.stats
        seen = {}
        for run in ("raw", "edge"):

            def document(run: str = run) -> dict[str, Any]:
                answer: dict[str, Any] = server.http.get(f"/v1/runs/{run}").json()
                return answer

            assert eventually(lambda: document()["integrity"]["updates"] == 8)
            seen[run] = document()
        assert seen["raw"]["last_update"]["counts"] == seen["edge"]["last_update"]["counts"]
        assert seen["raw"]["window"]["counts"] == seen["edge"]["window"]["counts"]
        assert seen["edge"]["window"]["counts"]["tokens"] == 8 * 600
        for name, value in seen["raw"]["window"]["indicators"].items():
            other = seen["edge"]["window"]["indicators"][name]
            assert other is value is None or other == pytest.approx(value, rel=1e-6, abs=1e-12), name
        worst = {step: server.http.get("/v1/runs/edge/worst", params={"step": step}).json() for step in (4, 5)}
        assert worst[4]["responses"] and not worst[5].get("responses")


def test_an_edge_update_is_tens_of_kilobytes_whatever_its_tokens() -> None:
    update = an_update(3, tokens=400_000, responses=500)
    form = checked_form("summary", "device", None, DEFAULT_SPEC, None)
    body = form.encode(0, form.hold(0, on_device(update)), {})
    assert len(body) < 64 * 1024 < len(encode_arrays(**update)) / 20
    summary, symptoms = decode_report(body)
    assert summary.count("tokens") == 400_000 and symptoms is not None and symptoms.count("tokens") > 0


def test_form_follows_the_step_and_where_the_tensors_are() -> None:
    form = checked_form("summary", "auto", 3, DEFAULT_SPEC, None)
    assert [form.is_raw(step) for step in range(5)] == [True, False, False, True, False]
    assert form.mime(1) == SUMMARY_MIME
    assert "gap" in form.hold(1, on_device(an_update(0)))  # in CPU memory: the client's thread reduces
    forced = checked_form("summary", "device", None, DEFAULT_SPEC, None)
    assert set(forced.hold(1, on_device(an_update(0)))) == {"reduction"}
    assert "gap" in forced.hold(1, an_update(0))  # numpy arrays lie on no device
    empty = {"gap": torch.zeros(0), "advantages": torch.zeros(2), "offsets": torch.zeros(3, dtype=torch.int64)}
    summary, _ = decode_report(forced.encode(1, forced.hold(1, empty), {}))
    assert summary.count("empty_responses") == 2


def test_nonsense_on_the_device_is_dropped_and_counted() -> None:
    with Monitor(UNREACHABLE, run="r", mode="summary", reduce_on="device") as monitor:
        assert not monitor.submit(step=0, gap=torch.zeros(4), advantages=torch.ones(3), offsets=[0, 2, 4])
        assert monitor.stats["dropped"] == {"invalid": 1} and "advantages" in monitor.stats["last_error"]
        assert monitor.submit(step=1, gap=torch.zeros(4), advantages=torch.ones(2), offsets=[0, 2, 4], rewards=[1.0])
        assert eventually(lambda: monitor.stats["dropped"] == {"invalid": 2})
        monitor.close(0.0)


@pytest.mark.parametrize("reduce_on", ["device", "host"])
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"padding_rows": -1}, "padding_rows"),
        ({"padding_rows": 2.5}, "padding_rows"),
        ({"padding_rows": "x"}, "padding_rows"),
        ({"padding_rows": 1 << 60}, "padding_rows"),
        ({"engines": ["a", "b", "c"]}, "engines"),
        ({"engines": ["a"]}, "engines"),
        ({"response_ids": ["a"]}, "response_ids"),
        ({"grad_norm": "x"}, "grad_norm"),
        ({"advantages": None}, "advantages"),
    ],
)
def test_what_does_not_fit_is_refused_here_wherever_it_is_reduced(
    reduce_on: str, wrong: dict[str, Any], named: str
) -> None:
    form = checked_form("summary", reduce_on, None, DEFAULT_SPEC, None)
    update = on_device({"gap": np.zeros(4), "advantages": np.ones(2), "offsets": np.array([0, 2, 4])}) | wrong
    with pytest.raises(InputError, match=f"column '{named}'"):
        form.encode(1, form.hold(1, {name: value for name, value in update.items() if value is not None}), {})


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"mode": "summary", "raw_every": 0}, "raw_every"),
        ({"mode": "summary", "raw_every": 2.0}, "raw_every"),
        ({"raw_every": 3}, "mode 'summary'"),
        ({"reduce_on": "device"}, "mode 'summary'"),
        ({"mode": "summary", "reduce_on": "gpu"}, "reduce_on"),
    ],
)
def test_wrong_forms_are_refused_when_built(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Monitor(UNREACHABLE, run="r", **wrong)


def test_lists_and_padding_of_a_device_are_reduced_too() -> None:
    form = checked_form("summary", "device", None, DEFAULT_SPEC, None)
    rows = [np.linspace(-0.2, 0.2, n, dtype=np.float32) for n in (5, 1, 90)]
    listed = form.hold(0, {"gap": [torch.tensor(row) for row in rows], "advantages": [1.0, -1.0, 0.5]})
    padded = torch.zeros(3, 90)
    mask = torch.zeros(3, 90, dtype=torch.bool)
    for i, row in enumerate(rows):
        padded[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), True
    held = form.hold(0, {"gap": padded, "mask": mask, "advantages": torch.tensor([1.0, -1.0, 0.5])})
    one, other = (decode_report(form.encode(0, form_held, {}))[0] for form_held in (listed, held))
    assert_same_summary(one, other)
    assert one.count("tokens") == 96 and one.count("segments") == 4


@pytest.mark.parametrize("reduce_on", ["device", "host"])
def test_padded_columns_of_as_many_tokens_as_responses_stay_one_a_token(reduce_on: str) -> None:
    """Three responses of 2, 1 and 0 tokens: cut out of their padding, three numbers could be one a response."""
    form = checked_form("summary", reduce_on, None, DEFAULT_SPEC, None)
    update = {
        "gap": torch.tensor([[-0.5, -0.5, 9.0], [-0.5, 9.0, 9.0], [9.0, 9.0, 9.0]]),
        "mask": torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]]),
        "advantages": torch.tensor([[-1.0, 2.0, 0.0], [-4.0, 0.0, 0.0], [8.0, 8.0, 8.0]]),
        "policy_versions": torch.tensor([[5, 4, 0], [3, 0, 0], [9, 9, 9]]),
    }
    summary, _ = decode_report(form.encode(1, form.hold(1, update), {}))
    signs = ("advantage_negative", "advantage_positive", "lag_tokens_0", "lag_tokens_1", "lag_tokens_2_plus")
    assert [summary.count(name) for name in signs] == [2, 1, 1, 1, 1]
