from dataclasses import dataclass, field
from enum import StrEnum

import pytest

from triage_monitor.errors import ConfigError
from triage_monitor.judge.settings_table import read_table


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Inner:
    name: str
    size: float = 1.0

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ConfigError("size must not be negative")


@dataclass(frozen=True, slots=True)
class Outer:
    count: int = 3
    on: bool = False
    colour: Colour = Colour.RED
    inner: Inner = field(default_factory=lambda: Inner("x"))
    parts: tuple[Inner, ...] = ()


def test_whole_table_is_read() -> None:
    data = {
        "count": 5,
        "on": True,
        "colour": "blue",
        "inner": {"name": "y", "size": 2},
        "parts": [{"name": "a"}, {"name": "b", "size": 0.5}],
    }
    expected = Outer(5, True, Colour.BLUE, Inner("y", 2.0), (Inner("a"), Inner("b", 0.5)))
    assert read_table(Outer, data, "t") == expected


def test_missing_keys_keep_their_defaults() -> None:
    assert read_table(Outer, {}, "t") == Outer()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"cuont": 5}, r"t\.cuont: there is no such setting; known are colour, count"),
        ({"count": 5.5}, r"t\.count: 5\.5 is not"),
        ({"count": True}, r"t\.count: True is not"),
        ({"on": 1}, r"t\.on: 1 is not"),
        ({"colour": "green"}, r"t\.colour: 'green' is not one of \['red', 'blue'\]"),
        ({"inner": 3}, r"t\.inner: expected a table, got int"),
        ({"inner": {"size": 2}}, r"t\.inner: name must be given"),
        ({"inner": {"name": "y", "size": float("nan")}}, r"t\.inner\.size: nan is not a finite float"),
        ({"parts": {"name": "a"}}, r"t\.parts: expected a list"),
        ({"parts": [{"name": "a"}, {"name": "b", "size": -1}]}, r"t\.parts\[1\]: size must not be negative"),
    ],
)
def test_wrong_table_is_refused_naming_the_key(data: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_table(Outer, data, "t")
