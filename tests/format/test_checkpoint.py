"""A state is restored exactly, a dump writes only changes, and damaged or hostile folders are refused."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from datasets_rl.errors import DiskFullError, IntegrityError, InvalidArgumentError
from datasets_rl.format import checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")

PIECE = 1 << 14

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32),
    *(torch.uint64, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32),
]


@pytest.fixture(autouse=True)
def small_pieces():
    """Use pieces of four pages, so that small tensors have several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "_PIECE_BYTES", PIECE)
        patch.setattr(checkpoint, "_INLINE_BYTES", 64)
        yield


def same(left, right):
    """Return whether two trees have the same types and are equal to the last bit."""
    if isinstance(left, torch.Tensor):
        return (
            isinstance(right, torch.Tensor)
            and (left.dtype, left.shape) == (right.dtype, right.shape)
            and bits(left) == bits(right)
        )
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return (math.isnan(left) and math.isnan(right)) or repr(left) == repr(right)
    return left == right


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def numbers(folder):
    return {path.name: path.stat().st_ino for path in folder.glob("*.npy")}


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.sampled_from([(), (0,), (1,), (5,), (3, 0, 2), (7, 3), (2, 3, 4), (9000,), (70, 70)]))
    noise = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    if dtype == torch.bool:
        noise &= 1
    tensor = torch.from_numpy(noise).view(dtype)[..., 0] if noise.size else torch.empty(shape, dtype=dtype)
    return tensor[..., 1:] if shape and draw(st.booleans()) else tensor


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(10**40), 10**40), st.floats(), st.text(), tensors()
)
TREES = st.dictionaries(
    st.text() | st.sampled_from(["$tensor", "$", "$$tuple", "file"]),
    st.recursive(
        VALUES,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(st.text() | st.sampled_from(["$int", "$tensor", "$float"]), inner, max_size=3),
        ),
        max_leaves=8,
    ),
    max_size=4,
)


def read_as_written(state, again):
    folder = Path(tempfile.mkdtemp())
    try:
        for tree in (state, again, state):
            checkpoint.write_state(folder, "Test", tree)
            assert same(checkpoint.read_state(folder), tree)
            assert same(checkpoint.read_state(folder, deep=True), tree)
    finally:
        shutil.rmtree(folder)


@settings(max_examples=10)
@given(state=TREES, again=TREES)
def test_any_state_is_read_as_it_was_written_also_over_another(state, again):
    read_as_written(state, again)


@pytest.mark.slow
@settings(max_examples=200)
@given(state=TREES, again=TREES)
def test_any_of_many_states_is_read_as_it_was_written(state, again):
    read_as_written(state, again)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(20_000.0).reshape(100, 200).T,
        torch.arange(20_000.0).reshape(100, 200)[::3, 5:60:7],
        torch.arange(5000, dtype=torch.float32).expand(10, 5000),
        torch.randn(3000, dtype=torch.complex64).conj(),
        torch.arange(9000.0, requires_grad=True),
        torch.nn.Parameter(torch.arange(3.0)),
        torch.arange(9.0).reshape(3, 3)[:, 1],
        torch.from_numpy(np.zeros(0)),
        torch.ones(1, 3).T[:0],
    ],
    ids=["transposed", "stepped", "expanded", "conjugate", "grad", "parameter", "column", "of numpy", "nothing"],
)
def test_a_view_is_saved_with_its_visible_values(tmp_path, tensor):
    checkpoint.write_state(tmp_path, "Test", {"x": tensor})
    got = checkpoint.read_state(tmp_path)["x"]

    assert got.is_contiguous()
    assert not got.requires_grad
    assert torch.equal(got, tensor.detach())


def test_numpy_opens_every_file_and_sha256_names_it(tmp_path):
    state = {"x": torch.arange(9000), "y": torch.rand(100, 3), "z": torch.ones(500, dtype=torch.bfloat16)}
    checkpoint.write_state(tmp_path, "Test", state)
    arrays = {path: np.load(path, mmap_mode="r") for path in tmp_path.glob("*.npy")}
    whole = np.sort(np.concatenate([array for array in arrays.values() if array.dtype == np.int64]))

    assert whole.tolist() == list(range(9000))
    assert (100, 3) in {array.shape for array in arrays.values()}
    assert np.dtype(np.uint16) in {array.dtype for array in arrays.values()}
    done = subprocess.run(["sha256sum", *arrays], capture_output=True, text=True, check=True)
    assert all(line.split()[0] in line.split()[1] for line in done.stdout.splitlines())


def test_writing_to_a_read_state_does_not_change_the_file(tmp_path):
    state = {"many": torch.arange(9000), "one": torch.arange(90), "inline": torch.arange(3)}
    checkpoint.write_state(tmp_path, "Test", state)
    got = checkpoint.read_state(tmp_path)
    for tensor in got.values():
        tensor.fill_(-1)

    assert same(checkpoint.read_state(tmp_path, deep=True), state)
    assert all((tensor == -1).all() for tensor in got.values())


def test_a_read_state_is_complete_after_a_later_dump_removes_its_files(tmp_path):
    checkpoint.write_state(tmp_path, "Test", {"x": torch.arange(9000)})
    got = checkpoint.read_state(tmp_path)["x"]
    checkpoint.write_state(tmp_path, "Test", {"x": torch.zeros(9000)})

    assert torch.equal(got, torch.arange(9000))


class TestIncremental:
    def test_a_second_dump_writes_only_the_pieces_that_changed_in_place(self, tmp_path):
        rows = torch.arange(10 * PIECE // 8).reshape(-1, 64)
        state = {"rows": checkpoint.row_chunks(rows), "other": torch.rand(5000)}
        checkpoint.write_state(tmp_path, "Test", state)
        before = numbers(tmp_path)
        rows[300, 3] = -1
        checkpoint.write_state(tmp_path, "Test", state)
        after = numbers(tmp_path)

        assert len(before) == len(after) == 11
        assert len(set(after) - set(before)) == 1
        assert all(after[name] == before[name] for name in set(after) & set(before))
        assert same(checkpoint.read_state(tmp_path), state)

    def test_appending_rows_does_not_rewrite_full_pieces(self, tmp_path):
        rows = torch.arange(10 * PIECE // 8)
        checkpoint.write_state(tmp_path, "Test", {"rows": checkpoint.row_chunks(rows[: 4 * PIECE // 8 + 100])})
        before = numbers(tmp_path)
        checkpoint.write_state(tmp_path, "Test", {"rows": checkpoint.row_chunks(rows)})
        after = numbers(tmp_path)

        assert len(set(after) & set(before)) == 4
        assert all(after[name] == before[name] for name in set(after) & set(before))

    def test_an_unchanged_state_writes_nothing(self, tmp_path):
        state = {"rows": torch.arange(9000), "n": 1}
        checkpoint.write_state(tmp_path, "Test", state)
        before = numbers(tmp_path)
        checkpoint.write_state(tmp_path, "Test", {"rows": torch.arange(9000), "n": 2})

        assert numbers(tmp_path) == before
        assert checkpoint.read_state(tmp_path)["n"] == 2

    def test_equal_tensors_are_stored_once(self, tmp_path):
        state = {"a": torch.arange(500), "b": torch.arange(500), "c": [torch.arange(500)] * 20}
        checkpoint.write_state(tmp_path, "Test", state)

        assert len(numbers(tmp_path)) == 1
        assert same(checkpoint.read_state(tmp_path), state)

    def test_a_truncated_file_is_written_again(self, tmp_path):
        state = {"x": torch.arange(500)}
        checkpoint.write_state(tmp_path, "Test", state)
        (path,) = tmp_path.glob("*.npy")
        os.truncate(path, 100)
        checkpoint.write_state(tmp_path, "Test", state)

        assert same(checkpoint.read_state(tmp_path, deep=True), state)


class TestRefusals:
    def test_all_unsupported_values_are_reported_with_their_positions(self, tmp_path):
        state = {
            "sampler": {"heap": [1, 2, 3, {1, 2}], "f": print},
            "td": TensorDict({"a": torch.ones(1)}),
            "sparse": torch.eye(3).to_sparse(),
            "meta": torch.ones(3, device="meta"),
            "array": np.ones(3),
            "number": np.float64(3),
            "keys": {3: 4, (1,): 2},
        }
        with pytest.raises(InvalidArgumentError) as caught:
            checkpoint.write_state(tmp_path / "new", "Test", state)

        for part in (
            "sampler.heap[3] is a set",
            "sampler.f is a builtin_function_or_method",
            "td is a TensorDict",
            "sparse is a Tensor of layout torch.sparse_coo",
            "meta is a Tensor of layout torch.strided, dtype torch.float32 on meta",
            "array is a ndarray",
            "number is a float64",
            "keys has the key 3",
            "keys has the key (1,)",
        ):
            assert part in caught.value.message
        assert not (tmp_path / "new").exists()

    def test_a_state_that_contains_itself_is_refused(self, tmp_path):
        state = {"a": []}
        state["a"].append(state)

        with pytest.raises(InvalidArgumentError, match="contains itself"):
            checkpoint.write_state(tmp_path / "new", "Test", state)
        assert not (tmp_path / "new").exists()

    def test_a_folder_with_other_files_is_not_changed(self, tmp_path):
        (tmp_path / "thesis.tex").write_text("x")

        with pytest.raises(InvalidArgumentError, match=r"not empty and is not a checkpoint: thesis\.tex"):
            checkpoint.write_state(tmp_path, "Test", {})
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

    def test_a_state_json_of_another_program_is_not_changed(self, tmp_path):
        (tmp_path / "state.json").write_text('{"mine": 1}')

        with pytest.raises(InvalidArgumentError, match="not a checkpoint"):
            checkpoint.write_state(tmp_path, "Test", {})
        assert (tmp_path / "state.json").read_text() == '{"mine": 1}'

    def test_a_file_is_not_a_folder(self, tmp_path):
        (tmp_path / "x").write_text("x")

        with pytest.raises(InvalidArgumentError, match="is a file"):
            checkpoint.write_state(tmp_path / "x", "Test", {})

    def test_user_files_in_a_checkpoint_are_kept(self, tmp_path):
        checkpoint.write_state(tmp_path, "Test", {"x": torch.arange(500)})
        (tmp_path / "notes.txt").write_text("best run")
        (tmp_path / "mine.npy").write_text("x")
        checkpoint.write_state(tmp_path, "Test", {"x": torch.arange(400)})

        assert {path.name for path in tmp_path.iterdir() if len(path.name) < 20} == {
            *("notes.txt", "mine.npy", "state.json")
        }

    def test_a_folder_without_a_checkpoint_is_an_error(self, tmp_path):
        for folder in (tmp_path, tmp_path / "absent"):
            with pytest.raises(InvalidArgumentError, match=r"not a checkpoint: state\.json is missing"):
                checkpoint.read_state(folder)

    def test_a_state_that_cannot_be_opened_is_an_error(self, tmp_path):
        (tmp_path / "state.json").mkdir()

        with pytest.raises(InvalidArgumentError, match="cannot be read"):
            checkpoint.read_state(tmp_path)

    def test_a_newer_version_is_an_error_with_both_versions_and_a_remedy(self, tmp_path):
        checkpoint.write_state(tmp_path, "Test", {})
        edit(tmp_path, lambda content: content.update(version=2))

        with pytest.raises(InvalidArgumentError, match=r"has version 2 .* reads version 1") as caught:
            checkpoint.read_state(tmp_path)
        assert "release" in caught.value.hint


def edit(folder, change):
    path = folder / "state.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


OUTSIDE = ["../secret.npy", "/etc/passwd", "a" * 64 + ".npy/../../x", "..", "", None, 3, "A" * 64 + ".npy"]


class TestHostile:
    """Reading any folder gives tensors or an error; it runs no code and reads no file outside."""

    @pytest.fixture
    def folder(self, tmp_path):
        state = {"x": torch.arange(5 * PIECE // 8), "y": torch.rand(100), "z": torch.arange(3), "t": (1, 2**70)}
        checkpoint.write_state(tmp_path / "c", "Test", state)
        return tmp_path / "c"

    def refused(self, folder, *parts):
        with pytest.raises(IntegrityError) as caught:
            checkpoint.read_state(folder)
        for part in parts:
            assert part in str(caught.value)
        return caught.value.problems

    @pytest.mark.parametrize("name", OUTSIDE, ids=repr)
    def test_no_file_outside_can_be_named(self, folder, tmp_path, name):
        array = np.arange(100)
        np.save(tmp_path / "secret.npy", array)
        edit(folder, lambda content: content["state"]["y"]["$tensor"].update(file=name))

        self.refused(folder, "y is ")

    @pytest.mark.parametrize(
        "wrong",
        [
            {"shape": [101]},
            {"shape": [10**12]},
            {"shape": [10**30]},
            {"shape": [0, 10**30]},
            {"shape": [-1, -100]},
            {"shape": [True]},
            {"shape": "100"},
            {"shape": [[]]},
            {"shape": 3},
            {"dtype": "int32"},
            {"dtype": "float64"},
            {"dtype": "load"},
            {"dtype": "__class__"},
            {"dtype": ["float32"]},
            {"file": []},
            {"file": {"a": 1}},
            {"file": "abc"},
            {"file": None},
            {"bits": "zz"},
        ],
        ids=repr,
    )
    def test_an_entry_that_does_not_fit_its_file_is_refused(self, folder, wrong):
        edit(folder, lambda content: content["state"]["y"]["$tensor"].update(wrong))

        assert len(self.refused(folder)) == 1

    @pytest.mark.parametrize(
        "wrong",
        [
            {"$tensor": {}},
            {"$tensor": None},
            {"$tensor": [1]},
            {"$tensor": {"dtype": "int64", "shape": [3], "bits": "00"}},
            {"$tensor": {"dtype": "int64", "shape": [3]}},
            {"$tuple": {}},
            {"$int": "x"},
            {"$int": 3},
            {"$float": "1e400"},
            {"$float": []},
            {"$eval": "1"},
        ],
        ids=repr,
    )
    def test_an_unknown_tag_is_refused_with_its_position(self, folder, wrong):
        edit(folder, lambda content: content["state"].update(deep=[0, {"odd": wrong}]))

        self.refused(folder, "deep[1].odd is ")

    def test_all_errors_are_reported_at_once(self, folder):
        files = sorted(folder.glob("*.npy"), key=lambda path: path.stat().st_size)
        files[0].unlink()
        os.truncate(files[1], 5000)
        edit(folder, lambda content: content["state"].update(a={"$int": "x"}))

        problems = self.refused(folder, f"{files[0].name} is missing", f"{files[1].name} has 5,000 bytes", "a is ")
        assert len(problems) == 3

    def test_a_pickle_in_place_of_an_array_is_not_loaded(self, folder, tmp_path):
        marker = tmp_path / "ran"

        class Evil:
            def __reduce__(self):
                return (Path.touch, (marker,))

        path = min(folder.glob("*.npy"), key=lambda path: path.stat().st_size)
        stream = io.BytesIO()
        np.save(stream, np.array([Evil()], object), allow_pickle=True)
        path.write_bytes(stream.getvalue().ljust(path.stat().st_size, b"\0"))

        self.refused(folder, "has a header with another dtype or shape")
        assert not marker.exists()

    def test_a_pipe_in_place_of_an_array_does_not_hang(self, folder):
        path = min(folder.glob("*.npy"), key=lambda path: path.stat().st_size)
        path.unlink()
        os.mkfifo(path)

        self.refused(folder, path.name)

    def test_a_changed_byte_is_found_on_demand(self, folder):
        path = max(folder.glob("*.npy"), key=lambda path: path.stat().st_size)
        with path.open("r+b") as stream:
            stream.seek(-1, os.SEEK_END)
            stream.write(b"\x55")
        checkpoint.read_state(folder)

        with pytest.raises(IntegrityError, match=f"{path.name} does not match the digest"):
            checkpoint.read_state(folder, deep=True)

    @pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"format": '], ids=["empty", "open", "deep", "cut"])
    def test_invalid_json_is_reported_as_damage(self, folder, text):
        (folder / "state.json").write_text(text)

        self.refused(folder, "is not JSON")

    def test_deeply_nested_json_is_reported_as_damage(self, folder):
        text = (folder / "state.json").read_text()
        (folder / "state.json").write_text(
            text.replace('"state": {', '"state": {"deep": ' + "[" * 600 + "]" * 600 + ",")
        )

        self.refused(folder, "nested too deep")

    @pytest.mark.parametrize("state", [[], None, 3, {"$tuple": []}], ids=repr)
    def test_a_state_is_a_dict(self, folder, state):
        edit(folder, lambda content: content.update(state=state))

        self.refused(folder, "expected a dict")


def test_a_reader_during_a_dump_gets_the_new_state(tmp_path, monkeypatch):
    """The files in the reader's old list no longer exist."""
    old, new = {"x": torch.arange(500)}, {"x": torch.arange(600)}
    checkpoint.write_state(tmp_path, "Test", old)
    text = (tmp_path / "state.json").read_text()
    checkpoint.write_state(tmp_path, "Test", new)
    texts = iter([text])
    read_now = checkpoint._read_text
    monkeypatch.setattr(checkpoint, "_read_text", lambda folder: next(texts, None) or read_now(folder))

    assert same(checkpoint.read_state(tmp_path), new)


@pytest.mark.slow
def test_threads_that_dump_to_one_folder_leave_one_of_the_states(tmp_path):
    states = [{"x": torch.full((5000,), number)} for number in range(4)]
    threads = [
        threading.Thread(target=lambda state=state: [checkpoint.write_state(tmp_path, "T", state) for _ in range(3)])
        for state in states
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    got = checkpoint.read_state(tmp_path, deep=True)
    assert any(same(got, state) for state in states)
    assert len(list(tmp_path.glob(".*"))) == 0


def test_a_first_dump_that_ends_while_another_one_looks_at_the_folder_is_no_foreign_file(tmp_path, monkeypatch):
    list_now = Path.iterdir

    def list_after_a_dump(folder):
        monkeypatch.setattr(Path, "iterdir", list_now)
        checkpoint.write_state(folder, "T", {"x": torch.zeros(5)})
        return list_now(folder)

    monkeypatch.setattr(Path, "iterdir", list_after_a_dump)
    checkpoint.write_state(tmp_path, "T", {"x": torch.ones(5)})

    assert same(checkpoint.read_state(tmp_path), {"x": torch.ones(5)})


WRITER = """
import sys, torch
from datasets_rl.format import checkpoint
checkpoint._PIECE_BYTES = 1 << 14
for _ in range(5):
    checkpoint.write_state(sys.argv[1], "Test", {"x": torch.full((50_000,), int(sys.argv[2]))})
"""


@pytest.mark.slow
def test_processes_that_dump_to_one_folder_leave_one_of_the_states(tmp_path):
    running = [subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, str(number)]) for number in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]

    values = checkpoint.read_state(tmp_path, deep=True)["x"].unique().tolist()
    assert values in [[0], [1], [2]]


@pytest.mark.parametrize(
    "tensors", [{"x": torch.arange(50_000)}, {str(n): torch.arange(n, n + 100) for n in range(60)}]
)
def test_a_full_disk_is_reported_and_the_old_state_is_kept(small_disk, tensors):
    old = {"x": torch.arange(3000)}
    checkpoint.write_state(small_disk / "c", "Test", old)
    before = sorted(path.name for path in (small_disk / "c").iterdir())

    with pytest.raises(DiskFullError, match="small"):
        checkpoint.write_state(small_disk / "c", "Test", tensors)
    assert same(checkpoint.read_state(small_disk / "c", deep=True), old)
    assert sorted(path.name for path in (small_disk / "c").iterdir()) == before


@pytest.mark.slow
def test_reading_needs_memory_only_for_accessed_values(tmp_path, monkeypatch):
    """A state larger than the memory is copied piece by piece; one file, mapped 512 times, simulates 8 GiB."""
    monkeypatch.setattr(checkpoint, "_PIECE_BYTES", 1 << 24)
    checkpoint.write_state(tmp_path, "Test", {"x": [torch.zeros(1 << 21, dtype=torch.int64)] * 512})
    before = resident()
    got = checkpoint.read_state(tmp_path)["x"]

    assert sum(piece.nbytes for piece in got) == 8 << 30
    assert sum(int(piece[7]) for piece in got[::100]) == 0
    got[3][5] = 1
    assert resident() - before < 1 << 28


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (5000, 3), (5, 9000), (7,)])
def test_pieces_have_all_rows_in_order(shape):
    rows = torch.arange(math.prod(shape)).reshape(shape)
    cut = checkpoint.row_chunks(rows)

    assert torch.equal(torch.cat(cut), rows)
    assert all(piece.nbytes <= max(PIECE, rows[:1].nbytes) for piece in cut)
    assert len({piece.untyped_storage().data_ptr() for piece in cut}) == 1


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
