"""What the trainer's objective tells: sums that add, ratios formed once, nothing made up."""

import random

import numpy as np
import pytest

from triage_monitor.errors import InputError
from triage_monitor.summary.objective import added, from_text, merged_units, ratios, to_text, to_units
from triage_monitor.summary.rows import UpdateRows, decode_stream, encode_stream, rows_from_arrays
from triage_monitor.summary.symptoms_codec import decode_symptoms, encode_symptoms
from triage_monitor.summary.symptoms_rows import symptoms_of

GATED = {"gate_mass_moved": 3.0, "mass_total": 12.0, "gated_tokens": 40, "tokens": 160}


def rows(objective: dict[str, float]) -> UpdateRows:
    gap = [np.array([0.1, -0.2], np.float32), np.array([0.3], np.float32)]
    return rows_from_arrays(gap=gap, advantages=np.array([1.0, -1.0]), objective=objective)


def test_ratio_of_shards_is_of_their_sums_and_no_mean_of_ratios() -> None:
    small = {"gate_mass_moved": 1.0, "mass_total": 1.0}
    found = ratios(merged_units([to_units(GATED), to_units(small)]))
    assert found["gate_mass_removed"] == pytest.approx(4 / 13, rel=1e-6)
    assert found["gated_token_fraction"] == 0.25


def test_merging_gives_the_same_in_any_order() -> None:
    numbers = random.Random(3)
    shards = [to_units({"mass_total": numbers.random(), "gate_mass_moved": numbers.random()}) for _ in range(9)]
    assert merged_units(shards) == merged_units(reversed(shards)) == merged_units([merged_units(shards), {}])


def test_what_is_not_known_is_absent() -> None:
    assert ratios({}) == {}
    assert ratios(to_units({"gate_mass_moved": 0.0, "mass_total": 0.0})) == {"gate_mass_removed": None}


def test_call_without_a_sum_leaves_it_out_of_the_whole() -> None:
    assert added([GATED, {"tokens": 40, "gated_tokens": float("nan")}]) == {"tokens": 200.0}


def test_sums_travel_with_the_rows_and_are_stored_with_the_symptoms() -> None:
    read = decode_stream(encode_stream(rows({"mass_total": 12.0, "gate_mass_moved": 3.0})), max_tokens=10)
    stored = decode_symptoms(encode_symptoms(symptoms_of(read).merge(symptoms_of(read))))
    assert ratios(stored.objective) == {"gate_mass_removed": 0.25}
    assert stored.objective["mass_total"] == 24 << 20


def test_rows_that_tell_nothing_travel_as_before() -> None:
    assert decode_stream(encode_stream(rows({})), max_tokens=10).objective == {}


NUMBERS = ("-1", "1e400", "true", "null", "[4]")
NONSENSE = ["", "[]", "3", '{"tokens": 4}x', "[" * 4000, *(f'{{"tokens": {number}}}' for number in NUMBERS)]


@pytest.mark.parametrize("text", NONSENSE)
def test_nonsense_is_refused_by_name(text: str) -> None:
    with pytest.raises(InputError, match="objective"):
        from_text(text)


def test_unknown_sums_are_left_alone() -> None:
    assert from_text(to_text({"tokens": 4.0, "of_tomorrow": 1.0})) == {"tokens": 4.0}
