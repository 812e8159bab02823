"""Torch files that nobody vouches for: read as torch reads them, and nothing in them is ever run."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from triage_monitor.errors import InputError
from triage_monitor.storage.torch_file import TorchFile

TENSORS = {
    "float32": torch.linspace(-3, 3, 7),
    "float64": torch.linspace(-3, 3, 7, dtype=torch.float64),
    "float16": torch.linspace(-3, 3, 7).half(),
    "bfloat16": torch.linspace(-3, 3, 7).bfloat16(),
    "int64": torch.arange(5),
    "int32": torch.arange(5, dtype=torch.int32),
    "uint8": torch.arange(5, dtype=torch.uint8),
    "bool": torch.tensor([True, False, True]),
    "view": torch.arange(10.0)[2:9:3],
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "expanded": torch.tensor([0.5]).expand(4),
    "empty": torch.zeros(0),
    "scalar": torch.tensor(2.5),
    "gradient": torch.ones(2, requires_grad=True),
}


def read(path: Path) -> Any:
    with TorchFile(path) as file:
        return file.value, {name: file.array(value) for name, value in file.value.items() if hasattr(value, "shape")}


def error_of(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        read(path)
    return caught.value


def test_tensors_are_read_as_torch_reads_them(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "a.pt")
    _, arrays = read(tmp_path / "a.pt")
    for name, tensor in TENSORS.items():
        expected = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()
        assert arrays[name].dtype == expected.dtype and arrays[name].shape == expected.shape
        np.testing.assert_array_equal(arrays[name], expected)


def test_plain_values_and_numpy_arrays_are_read(tmp_path: Path) -> None:
    plain = {"a": [1, -2, 2**40], "b": (1.5, None, True), "c": OrderedDict(x="y"), "d": range(2, 9, 3), "e": "\u00e9"}
    numpy = {
        "f": np.array([[1.5, 2.5]]),
        "g": np.arange(3, dtype=np.int32),
        "h": np.asfortranarray(np.eye(2)),
        "i": np.float32(3),
    }
    torch.save(plain | numpy, tmp_path / "a.pt")
    value, arrays = read(tmp_path / "a.pt")
    assert {name: value[name] for name in plain} == plain and value["i"] == 3.0
    for name in ("f", "g", "h"):
        np.testing.assert_array_equal(arrays[name], numpy[name])


class Attack:
    """Runs a command when an ordinary reader loads it."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


@pytest.mark.parametrize(
    ("attack", "name"),
    [
        (lambda mark: Attack(os.system, f"touch {mark}"), "posix.system"),
        (lambda mark: Attack(eval, f"open({str(mark)!r}, 'w')"), "eval"),
        (lambda mark: Attack(subprocess.Popen, ["touch", str(mark)]), "Popen"),
        (lambda mark: Attack(getattr, "", "join"), "getattr"),
        (lambda mark: Path(mark), "pathlib"),
    ],
)
def test_a_name_that_is_not_on_the_list_is_refused_and_not_run(tmp_path: Path, attack: Any, name: str) -> None:
    mark = tmp_path / "ran"
    torch.save({"rollout_data": attack(mark)}, tmp_path / "a.pt")
    error = error_of(tmp_path / "a.pt")
    assert error.reason == "forbidden_global" and name in str(error) and str(tmp_path / "a.pt") in str(error)
    assert not mark.exists()


def with_pickle(path: Path, program: bytes, storage: bytes = b"") -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x/data.pkl", program)
        file.writestr("x/data/0", storage)
    return path


GLOBAL = b"ctorch._utils\n_rebuild_tensor_v2\n"
STORAGE = b"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ"


def tensor_program(offset: bytes, size: bytes, stride: bytes) -> bytes:
    return b"\x80\x02}X\x01\x00\x00\x00a" + GLOBAL + STORAGE + offset + size + b"\x85" + stride + b"\x85\x89NtRs."


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [
        (b"K\x00", b"K\x03", b"K\x01"),
        (b"K\x02", b"K\x01", b"K\x01"),
        (b"K\x00", b"K\x02", b"K\x02"),
        (b"K\x00", b"J\xff\xff\xff\xff", b"K\x01"),
        (b"J\xff\xff\xff\xff", b"K\x01", b"K\x01"),
        (b"K\x00", b"J\xff\xff\xff\x7f", b"K\x00"),
    ],
)
def test_a_tensor_beyond_its_storage_is_damage(tmp_path: Path, offset: bytes, size: bytes, stride: bytes) -> None:
    sound = with_pickle(tmp_path / "sound.pt", tensor_program(b"K\x00", b"K\x02", b"K\x01"), bytes(8))
    assert read(sound)[1]["a"].tolist() == [0.0, 0.0]
    assert (
        error_of(with_pickle(tmp_path / "a.pt", tensor_program(offset, size, stride), bytes(8))).reason
        == "damaged_file"
    )


@pytest.mark.parametrize(
    "program",
    [
        pickle.dumps({"a": 1}, protocol=4),  # opcodes that torch.save does not write
        b"\x80\x02cos\nsystem\n.",
        b"\x80\x02]K\x01R.",  # a call of what is no name
        b"\x80\x02}}b.",  # state for a dict
        b"\x80\x02r\xff\xff\xff\xff.",
        b"\x80\x02X\xff\xff\xff\x7fa.",
        b"",
        b".",
    ],
)
def test_nonsense_programs_end_in_a_sentence(tmp_path: Path, program: bytes) -> None:
    assert error_of(with_pickle(tmp_path / "a.pt", program)).reason in ("damaged_file", "forbidden_global")


def test_every_flipped_byte_is_told_or_changes_nothing_wanted(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(4.0), "b": [1, 2]}, tmp_path / "a.pt")
    content = (tmp_path / "a.pt").read_bytes()
    _, sound = read(tmp_path / "a.pt")
    rng = np.random.default_rng(0)
    for place in rng.choice(len(content), 150, replace=False):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        (tmp_path / "b.pt").write_bytes(damaged)
        try:
            _, arrays = read(tmp_path / "b.pt")
        except InputError:
            continue
        np.testing.assert_array_equal(arrays["a"], sound["a"])


def test_a_file_cut_anywhere_is_unfinished(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(4.0)}, tmp_path / "a.pt")
    content = (tmp_path / "a.pt").read_bytes()
    for size in (1, 100, len(content) // 2, len(content) - 1):
        (tmp_path / "b.pt").write_bytes(content[:size])
        assert error_of(tmp_path / "b.pt").reason == "unfinished_file"


def test_compressed_entries_are_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x/data.pkl", b"\x80\x02}.")
    (tmp_path / "a.pt").write_bytes(buffer.getvalue())
    assert "compressed" in str(error_of(tmp_path / "a.pt"))


def test_torch_is_not_loaded(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "a.pt")
    program = (
        "import sys; from pathlib import Path; from triage_monitor.storage.torch_file import TorchFile;"
        f"TorchFile(Path({str(tmp_path / 'a.pt')!r})); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def doubled(start: Any) -> Any:
    """2^60 values in a file of a kilobyte."""
    for _ in range(60):
        start = type(start)([start, start])
    return start


@pytest.mark.parametrize("start", [[], ()])
def test_values_that_refer_to_one_another_without_end_are_refused(tmp_path: Path, start: Any) -> None:
    torch.save({"rollout_id": doubled(start)}, tmp_path / "a.pt")
    assert "amount to more than" in str(error_of(tmp_path / "a.pt"))


def test_a_value_that_holds_itself_is_refused(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    torch.save({"rollout_id": loop}, tmp_path / "a.pt")
    assert "amount to more than" in str(error_of(tmp_path / "a.pt"))


def test_a_text_told_many_times_is_counted_each_time(tmp_path: Path) -> None:
    torch.save({"rollout_id": ["x" * 100_000] * 100_000}, tmp_path / "a.pt")
    assert "amount to more than" in str(error_of(tmp_path / "a.pt"))


def test_a_tuple_as_a_key_is_refused_before_it_is_hashed(tmp_path: Path) -> None:
    shared = b"".join(b"q" + bytes([mark]) + b"h" + bytes([mark]) + b"\x86" for mark in range(1, 61))
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as file:
        file.writestr("a/data.pkl", b"\x80\x02})" + shared + b"K\x01s.")
    assert "neither texts nor numbers" in str(error_of(tmp_path / "a.pt"))


def test_whole_numbers_that_no_step_can_be_are_refused(tmp_path: Path) -> None:
    torch.save({"rollout_id": 10**4000}, tmp_path / "a.pt")
    assert error_of(tmp_path / "a.pt").reason == "damaged_file"


def test_an_empty_numpy_array_is_read(tmp_path: Path) -> None:
    torch.save({"none": np.zeros(0, np.int64)}, tmp_path / "a.pt")
    with TorchFile(tmp_path / "a.pt") as file:
        assert file.array(file.value["none"]).shape == (0,)
