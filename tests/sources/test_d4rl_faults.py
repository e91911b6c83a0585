"""A file that violates D4RL's layout is refused with all errors at once."""

from __future__ import annotations

import d4rl_files
import h5py
import numpy as np
import pytest

from datasets_rl import downloading
from datasets_rl.errors import ConversionError
from datasets_rl.settings import Settings
from datasets_rl.sources.d4rl import SOURCE

NAME = "halfcheetah-medium-v2"


@pytest.fixture
def columns():
    return dict(d4rl_files.mujoco_columns(d4rl_files.rollout()))


def refusal(path, columns=None):
    """Return the errors of opening and reading the complete file."""
    if columns is not None:
        d4rl_files.write(path, columns)
    with pytest.raises(ConversionError) as caught, SOURCE.open(NAME, {SOURCE.assets(NAME)[0].path: path}) as recording:
        for _ in recording.episodes():
            pass
    return caught.value.problems


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminals"])
def test_a_missing_column_is_named(tmp_path, columns, name):
    del columns[name]
    columns.pop(f"next_{name}", None)

    assert refusal(tmp_path / "x.h5", columns) == (
        f"{name} is missing, expected {name} [N{', ...' if name in {'observations', 'actions'} else ''}]",
    )


@pytest.mark.parametrize("name", ["actions", "rewards", "terminals", "timeouts", "next_observations", "infos/qpos"])
def test_a_column_of_another_length_is_named_with_both_numbers(tmp_path, columns, name):
    """maze2d-umaze-v1 once had 999,999 observations and 987,540 actions."""
    columns[name] = columns[name][:-13]

    assert refusal(tmp_path / "x.h5", columns) == (
        f"{name} has shape {list(columns[name].shape)}, expected 300 rows, as many as the other columns",
    )


def test_all_errors_are_reported_at_once(tmp_path, columns):
    del columns["rewards"]
    columns["actions"] = columns["actions"][:5]
    columns["infos/qpos"] = np.bytes_(b"text")
    columns["done"] = columns["terminals"]
    columns["next_observations"] = columns["next_observations"][:, :3]
    problems = refusal(tmp_path / "x.h5", columns)

    assert len(problems) == 6
    for part in (
        "rewards is missing",
        "actions has shape [5, 6]",
        "infos/qpos has dtype |S4",
        "infos/qpos has shape []",
    ):
        assert any(problem.startswith(part) for problem in problems), problems
    assert any("done has a name that TED reserves" in problem for problem in problems)
    assert any("next_observations has shape [300, 3], expected that of observations" in problem for problem in problems)


@pytest.mark.parametrize(
    ("name", "value", "shown"), [("terminals", 2.0, "2.0"), ("timeouts", -1.0, "-1.0"), ("terminals", np.nan, "nan")]
)
def test_a_flag_that_is_neither_0_nor_1_is_refused_with_its_row(tmp_path, columns, name, value, shown):
    columns[name] = columns[name].astype(np.float32)
    columns[name][[123, 200]] = value

    assert refusal(tmp_path / "x.h5", columns) == (f"{name} is {shown} at row 123, expected 0 or 1 (2 such rows)",)


def test_invalid_terminals_and_timeouts_are_reported_at_once(tmp_path, columns):
    for name in ("terminals", "timeouts"):
        columns[name] = columns[name].astype(np.int64)
        columns[name][0] = 7

    assert len(refusal(tmp_path / "x.h5", columns)) == 2


def test_flags_with_several_values_per_step_are_refused(tmp_path, columns):
    columns["terminals"] = np.zeros((300, 2), bool)

    assert refusal(tmp_path / "x.h5", columns) == ("terminals has shape [300, 2], expected [300] or [300, 1]",)


def test_a_file_without_rows_is_refused(tmp_path, columns):
    assert "it has no rows" in refusal(tmp_path / "x.h5", {name: value[:0] for name, value in columns.items()})


def test_columns_that_would_share_a_key_are_refused(tmp_path, columns):
    columns["infos/a.b"] = columns["infos/a_b"] = columns["rewards"]

    assert refusal(tmp_path / "x.h5", columns) == ("infos/a_b and infos/a.b both map to the key info.a_b",)


def test_a_file_of_another_environment_is_refused(tmp_path, columns):
    columns["observations"] = columns["next_observations"] = columns["observations"][:, :11]
    columns["actions"] = columns["actions"][:, :3]

    assert refusal(tmp_path / "x.h5", columns) == (
        "observations have 11 numbers per step, but halfcheetah-medium-v2 has 17: this is another dataset's file",
        "actions have 3 numbers per step, but halfcheetah-medium-v2 has 6: this is another dataset's file",
    )


@pytest.mark.parametrize("dtype", [np.uint64, np.longdouble])
def test_dtypes_that_torch_does_not_support_are_refused(tmp_path, columns, dtype):
    if np.dtype(dtype) == np.float64:
        pytest.skip("a long double is a double here")
    columns["infos/ticks"] = np.zeros(len(columns["rewards"]), dtype)

    (problem,) = refusal(tmp_path / "x.h5", columns)
    assert problem.startswith(f"infos/ticks has dtype {np.dtype(dtype).name}, which torch does not support")


def test_large_metadata_is_refused(tmp_path, columns):
    columns["metadata/weights"] = np.zeros((17 << 20,), np.float32)

    assert refusal(tmp_path / "x.h5", columns)[0].startswith(
        "the datasets without one row per step have 71,303,168 bytes"
    )


def test_objects_in_the_metadata_are_refused(tmp_path, columns):
    d4rl_files.write(tmp_path / "x.h5", columns)
    with h5py.File(tmp_path / "x.h5", "a") as file:
        file.create_dataset("metadata/pointer", data=file.ref, dtype=h5py.ref_dtype)

    assert refusal(tmp_path / "x.h5") == ("metadata/pointer has dtype object, expected numbers or text",)


def test_a_web_page_is_refused(tmp_path):
    (tmp_path / "x.h5").write_text("<html>403 Forbidden</html>")

    assert "is a web page" in refusal(tmp_path / "x.h5")[0]


def test_a_refused_file_is_closed(tmp_path, columns):
    """On some systems an open file cannot be replaced."""
    columns["terminals"] = columns["terminals"] * 2.0
    columns["terminals"][4] = 2
    refusal(tmp_path / "x.h5", columns)

    with h5py.File(tmp_path / "x.h5", "a"):
        pass


@pytest.mark.parametrize("name", ["infos/{}", "metadata/{}", "{}"])
def test_a_name_that_is_too_long_for_a_file_is_refused_before_any_write(tmp_path, columns, name):
    columns[name.format("k" * 300)] = np.zeros((300, 2), np.float32)
    d4rl_files.write(tmp_path / "x.hdf5", columns)
    settings = Settings(home=tmp_path / "home", progress=False)

    with pytest.raises(ConversionError, match=r"kkk\.\.\..* expected 200 at most"):
        downloading.download(f"d4rl/{NAME}", from_local=tmp_path / "x.hdf5", hash_check=False, settings=settings)
    assert not [*(tmp_path / "home").rglob("*.npy")]
