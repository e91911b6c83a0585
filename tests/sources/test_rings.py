"""Replay buffers that are filled in part, or that are full rings, become their steps in the order of time, or a question."""

from __future__ import annotations

import pickle

import h5py
import numpy as np
import pytest

from datasets_rl import download
from datasets_rl.errors import ConversionError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources.local.files import check_files, draft_description

LENGTHS = [12, 20, 8, 15]
ROWS = sum(LENGTHS)
_DRAW = np.random.default_rng(2)
_PATHS = [_DRAW.normal(size=(length + 1, 3)).cumsum(0) + 20 * number for number, length in enumerate(LENGTHS)]
STEPS = {
    "observations": np.concatenate([path[:-1] for path in _PATHS]),
    "next_observations": np.concatenate([path[1:] for path in _PATHS]),
    "actions": _DRAW.normal(size=(ROWS, 2)),
    "rewards": _DRAW.normal(size=ROWS),
    "dones": np.isin(np.arange(ROWS), np.cumsum(LENGTHS) - 1),
}


def padded(rows=25, value=0, without=(), **others):
    """Return the arrays of a buffer with rows that are not filled."""
    arrays = {
        name: np.concatenate([values, np.full((rows, *values.shape[1:]), value, values.dtype)])
        for name, values in STEPS.items()
        if name not in without
    }
    return {**arrays, **others}


def ring(pointer, without=(), **others):
    """Return the arrays of a full ring, the oldest row of which is the row `pointer`."""
    arrays = {name: np.roll(values, pointer, 0) for name, values in STEPS.items() if name not in without}
    return {**arrays, **others}


@pytest.fixture
def convert(tmp_path):
    """A function that writes arrays into a file, and downloads the folder."""

    def run(arrays, name="a.npz", text="", attributes=None):
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        if name.endswith("npz"):
            np.savez(folder / name, **arrays)
        elif name.endswith("pkl"):
            (folder / name).write_bytes(pickle.dumps(arrays))
        elif name.endswith("npy"):
            for array, values in arrays.items():
                np.save(folder / f"{array}.npy", values)
        else:
            with h5py.File(folder / name, "w") as file:
                for array, values in arrays.items():
                    file[array] = values
                file.attrs.update(attributes or {})
        (folder / "dataset.toml").write_text(text)
        settings = Settings(home=tmp_path / "home", progress=False, jobs=1)
        return StoredDataset(download(str(folder), settings=settings))

    return run


def rules(stored):
    return {decision.rule: decision.count for decision in stored.manifest.decisions}


def assert_steps(stored, lengths=LENGTHS):
    assert stored.episodes.lengths.tolist() == lengths
    np.testing.assert_array_equal(stored.column(("action",)), STEPS["actions"])
    np.testing.assert_array_equal(np.asarray(stored.column(("next", "reward")))[:, 0], STEPS["rewards"])


@pytest.mark.first(10)
@pytest.mark.parametrize(
    "numbers",
    [
        {"size": ROWS},
        {"size": np.array([ROWS])},
        {"ptr": ROWS},
        {"ptr": ROWS, "size": ROWS, "max_size": ROWS + 25},
        {"pos": ROWS, "full": False},
        {"insert_index": ROWS, "size": float(ROWS)},
        {"idx": ROWS, "capacity": ROWS + 25},
        {"size": ROWS + 25, "cur_size": ROWS},
    ],
    ids=str,
)
@pytest.mark.parametrize("without", [(), ("next_observations",)], ids=["next", "no next"])
def test_the_rows_of_a_buffer_that_were_never_filled_are_left_out_and_counted(convert, numbers, without):
    stored = convert(padded(without=without, **numbers))

    assert_steps(stored)
    assert rules(stored)["unfilled-rows"] == 25
    assert "ring-unrolled" not in rules(stored)


@pytest.mark.parametrize("name", ["a.npz", "a.pkl", "a.h5", "npy"])
def test_a_buffer_of_each_format_is_cut_to_its_size(convert, name):
    stored = convert(padded(size=ROWS), name)

    assert_steps(stored)
    assert rules(stored)["unfilled-rows"] == 25


def test_a_buffer_of_one_environment_is_cut_to_its_size(convert):
    arrays = {name: values[:, None] for name, values in padded().items()}

    stored = convert({**arrays, "pos": ROWS, "full": False})

    assert stored.episodes.lengths.tolist() == LENGTHS
    assert rules(stored)["unfilled-rows"] == 25


def test_the_size_may_be_an_attribute_of_hdf5(convert):
    stored = convert(padded(), "a.h5", attributes={"size": ROWS, "capacity": ROWS + 25, "env": "arm"})

    assert_steps(stored)
    assert rules(stored)["unfilled-rows"] == 25


def test_rows_of_nan_were_never_filled(convert):
    arrays = padded(size=ROWS)
    arrays["rewards"][ROWS:] = np.nan

    assert_steps(convert(arrays))


@pytest.mark.parametrize(
    "numbers",
    [{"ptr": 30, "size": ROWS}, {"pos": 30, "full": True}, {"insert_index": 30, "size": ROWS, "max_size": ROWS}],
    ids=str,
)
@pytest.mark.parametrize("without", [(), ("next_observations",)], ids=["next", "no next"])
def test_the_rows_of_a_full_ring_are_put_in_the_order_of_time(convert, numbers, without):
    stored = convert(ring(30, without, **numbers))

    assert_steps(stored)
    assert rules(stored)["ring-unrolled"] == ROWS
    np.testing.assert_array_equal(np.asarray(stored.column(("observation",)))[:5], STEPS["observations"][:5])


def test_a_ring_that_begins_within_an_episode_keeps_the_rest_of_the_episode(convert):
    arrays = {name: np.roll(values[5:], 10, 0) for name, values in STEPS.items()}

    stored = convert({**arrays, "ptr": 10, "size": ROWS - 5})

    assert stored.episodes.lengths.tolist() == [7, 20, 8, 15]
    np.testing.assert_array_equal(stored.column(("action",)), STEPS["actions"][5:])


@pytest.mark.parametrize(
    "numbers",
    [
        {"size": ROWS},
        {"size": ROWS, "ptr": ROWS},
        {"size": ROWS, "ptr": 0},
        {"size": ROWS, "max_size": 1000},
        {"size": ROWS, "ptr": ROWS, "max_size": 1000},
        {"full": True, "pos": 0},
        {"ptr": 0},
        {"max_size": 1000},
        {"size": 64_000_000},
        {"idx": 3},
        {"index": 7, "seed": 3},
    ],
    ids=str,
)
def test_a_file_whose_rows_are_all_filled_is_read_as_it_is(convert, numbers):
    stored = convert({**STEPS, **numbers})

    assert_steps(stored)
    assert not {"unfilled-rows", "ring-unrolled"} & rules(stored).keys()


QUESTIONS = {
    "rows after the size with values": ({**STEPS, "size": 40}, "actions has other values than zeros after row 39"),
    "another next row than the size": (padded(size=ROWS, ptr=7), "with 55 filled rows is row 55"),
    "a full buffer of fewer rows": (padded(size=ROWS, full=True), "a full buffer has 80 rows"),
    "more rows than the arrays": ({**STEPS, "size": 90, "max_size": 100}, "the arrays have 55 rows"),
    "a next row without a size": ({**STEPS, "ptr": 40}, "actions has other values than zeros after row 39"),
    "a ring that is not full": ({**STEPS, "size": ROWS, "ptr": 40, "full": False}, "the buffer is not full"),
    "rows in the order of time": (
        {**STEPS, "size": ROWS, "ptr": 25},
        "next_observations of row 24 is observations of row 25, as in the order of time",
    ),
    "ends of episodes beside a ring": (
        ring(30, ("dones",), size=ROWS, ptr=30, episode_ends=np.cumsum(LENGTHS)),
        "episode_ends may number the rows",
    ),
    "a buffer without a row": (padded(size=0), "no row is filled"),
}


@pytest.mark.parametrize(("arrays", "problem"), QUESTIONS.values(), ids=QUESTIONS)
def test_a_size_that_contradicts_the_rows_is_refused_with_the_question(convert, arrays, problem):
    with pytest.raises(ConversionError, match=problem) as error:
        convert(arrays)

    for answer in ('buffer = "filled"', 'buffer = "ring"', 'buffer = "rows"'):
        assert answer in str(error.value.hint)


@pytest.mark.parametrize(
    ("arrays", "answer", "rows"),
    [
        ({**STEPS, "size": 40}, "filled", [*range(40)]),
        ({**STEPS, "size": 40}, "rows", [*range(ROWS)]),
        ({**STEPS, "size": ROWS, "ptr": 25}, "rows", [*range(ROWS)]),
        ({**STEPS, "size": ROWS, "ptr": 25}, "filled", [*range(ROWS)]),
        ({**STEPS, "size": ROWS, "ptr": 20}, "ring", [*range(20, ROWS), *range(20)]),
        (ring(30, size=ROWS, ptr=30, full=False), "ring", [*range(ROWS)]),
        (ring(30, ptr=30), "ring", [*range(ROWS)]),
        (ring(30, pos=30, full=False), "ring", [*range(ROWS)]),
        ({**STEPS, "size": 90, "max_size": 100}, "rows", [*range(ROWS)]),
    ],
)
def test_the_answer_decides_which_rows_are_steps(convert, arrays, answer, rows):
    stored = convert(arrays, text=f'buffer = "{answer}"')

    np.testing.assert_array_equal(stored.column(("action",)), STEPS["actions"][rows])


def test_an_answer_without_a_size_is_refused(convert):
    with pytest.raises(ConversionError, match="no number has the name of the size"):
        convert(STEPS, text='buffer = "ring"')
    with pytest.raises(ConversionError, match="buffer is 'round', expected one of rows, filled, ring"):
        convert(STEPS, text='buffer = "round"')


def test_a_draft_asks_what_the_conversion_asks(tmp_path):
    np.savez(tmp_path / "a.npz", **{**STEPS, "size": 40})

    with pytest.raises(ConversionError, match="other values than zeros after row 39"):
        check_files(tmp_path)


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        (padded(size=ROWS), 'buffer = "filled"'),
        (ring(30, size=ROWS, ptr=30), 'buffer = "ring"'),
        ({**STEPS, "size": ROWS, "ptr": 0}, ""),
    ],
    ids=["filled", "ring", "rows in the order of time"],
)
def test_a_drafted_description_states_which_rows_of_a_buffer_are_steps(tmp_path, arrays, line):
    np.savez(tmp_path / "buffer.npz", **arrays)

    drafted = draft_description(tmp_path)
    (tmp_path / "dataset.toml").write_text(drafted.text)

    assert drafted.is_certain
    assert [text.split("  ")[0] for text in drafted.text.splitlines() if "buffer" in text and "name" not in text] == (
        [line] if line else []
    )
    assert check_files(tmp_path).steps == ROWS


def test_a_drafted_description_asks_for_the_rows_of_a_doubtful_buffer_before_the_first_table(tmp_path):
    np.savez(tmp_path / "buffer.npz", **padded(value=1, size=ROWS))

    drafted = draft_description(tmp_path)
    before, mark, rest = drafted.text.partition("[episodes]")
    answered = before.replace("# buffer = ...", "buffer = 'filled'")
    (tmp_path / "dataset.toml").write_text(f"{answered}{mark}{rest}")

    assert [question.partition("?")[0] for question in drafted.questions] == ["which rows of the buffer are the steps"]
    assert check_files(tmp_path).steps == ROWS


def test_the_drafted_description_of_several_buffers_leaves_the_rows_to_each_file(tmp_path):
    np.savez(tmp_path / "buffer_0.npz", **padded(size=ROWS))
    np.savez(tmp_path / "buffer_1.npz", **ring(30, size=ROWS, ptr=30))

    (tmp_path / "dataset.toml").write_text(draft_description(tmp_path).text)

    checked = check_files(tmp_path)
    assert checked.steps == 2 * ROWS
    assert {"unfilled-rows", "ring-unrolled"} <= {decision.rule for decision in checked.decisions if decision.count}
