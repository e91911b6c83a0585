"""Files of the user in every format: the values are those that numpy, pandas and pickle wrote."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pandas as pd
import pytest

from datasets_rl import download, load, verification
from datasets_rl.errors import ConversionError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources.flat import json_tables, text_tables
from datasets_rl.sources.flat.formats import open_arrays

LENGTHS = [3, 5, 2]
ROWS = sum(LENGTHS)
DONE = np.isin(np.arange(ROWS), np.cumsum(LENGTHS) - 1)
OBS = np.random.default_rng(0).normal(size=(ROWS, 3))
ACTION = np.arange(ROWS)
REWARD = np.linspace(-1, 1, ROWS)


def table(columns="obs_{}"):
    """Return a frame with a column for each element of the observations."""
    elements = {columns.format(number): OBS[:, number] for number in range(3)}
    return pd.DataFrame({**elements, "action": ACTION, "reward": REWARD, "done": DONE})


def nested():
    """Return a frame with lists in cells."""
    return pd.DataFrame({"obs": OBS.tolist(), "action": ACTION, "reward": REWARD, "done": DONE})


def episodes():
    """Return the episodes as dicts of arrays."""
    spans = zip(np.cumsum([0, *LENGTHS[:-1]]), np.cumsum(LENGTHS), strict=True)
    arrays = {"observations": OBS, "actions": ACTION, "rewards": REWARD, "terminals": DONE}
    return [{name: values[start:stop] for name, values in arrays.items()} for start, stop in spans]


def steps():
    """Return the steps as dicts."""
    return [
        {"obs": OBS[row], "action": int(ACTION[row]), "reward": float(REWARD[row]), "done": bool(DONE[row])}
        for row in range(ROWS)
    ]


def tuples():
    """Return the steps as tuples (s, a, r, s', done)."""
    after = np.roll(OBS, -1, axis=0)
    return [(OBS[row], ACTION[row], REWARD[row], after[row], DONE[row]) for row in range(ROWS)]


def dump(value, protocol=None):
    return lambda path: path.write_bytes(pickle.dumps(value, protocol))


def objects(value):
    return lambda path: np.save(path, np.array(value, dtype=object), allow_pickle=True)


WRITERS = {
    "numbered.csv": lambda path: table().to_csv(path, index=False),
    "index.csv": lambda path: table().to_csv(path),
    "brackets.csv": lambda path: table("obs[{}]").to_csv(path, index=False),
    "from_1.csv": lambda path: (
        table("obs_{}").rename(columns=lambda n: f"obs_{int(n[4:]) + 1}" if n[:4] == "obs_" else n).to_csv(path)
    ),
    "lists.csv": lambda path: nested().to_csv(path),
    "numpy.csv": lambda path: nested().assign(obs=[str(row.tolist()).replace(",", "") for row in OBS]).to_csv(path),
    "packed.csv.gz": lambda path: table().to_csv(path, index=False),
    "tabs.tsv": lambda path: table().to_csv(path, sep="\t"),
    "lines.jsonl": lambda path: nested().to_json(path, orient="records", lines=True, double_precision=15),
    "numbered.jsonl": lambda path: table().to_json(path, orient="records", lines=True, double_precision=15),
    "numbered.parquet": lambda path: table().to_parquet(path),
    "lists.parquet": lambda path: nested().to_parquet(path),
    "frame.feather": lambda path: table().to_feather(path),
    "episodes.pkl": dump(episodes()),
    "old.pickle": dump(episodes(), 2),
    "steps.pkl": dump(steps()),
    "tuples.pkl": dump(tuples()),
    "arrays.pkl": dump({"observations": OBS, "actions": ACTION, "rewards": REWARD, "dones": DONE}),
    "episodes.npy": objects(episodes()),
    "dict.npy": objects({"observations": OBS, "actions": ACTION, "rewards": REWARD, "dones": DONE}),
    "arrays.npz": lambda path: np.savez(path, obs=OBS, action=ACTION, reward=REWARD, done=DONE),
}


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home", progress=False, jobs=1)


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_is_named_by_its_path_is_converted_with_its_values(tmp_path, settings, name):
    WRITERS[name](tmp_path / name)

    stored = StoredDataset(download(str(tmp_path / name), settings=settings))

    assert stored.episodes.lengths.tolist() == LENGTHS
    np.testing.assert_allclose(stored.column(("observation",)), OBS, rtol=1e-12)
    np.testing.assert_array_equal(stored.column(("action",)).reshape(-1), ACTION)
    np.testing.assert_allclose(stored.column(("next", "reward"))[:, 0], REWARD, rtol=1e-6)
    np.testing.assert_array_equal(stored.column(("next", "terminated"))[:, 0], DONE)
    assert verification.verify(stored.folder, deep=True, settings=settings).problems == ()


def test_a_file_is_loaded_by_its_path(tmp_path, settings):
    WRITERS["episodes.pkl"](tmp_path / "episodes.pkl")

    assert len(load(str(tmp_path / "episodes.pkl"), root=settings.home)) == ROWS


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.csv", "obs,action\n1,2\n3\n", "row 2 has 1 cells, expected 2"),
        ("a.csv", "1.0,2.0\n3.0,4.0\n", "the first row has numbers, 1.0, 2.0, expected"),
        ("a.csv", "obs,obs\n1,2\n", "have no unique name"),
        ("a.csv", "", "the file is empty"),
        ("a.csv", 'obs,action\n"1,2\n', "cannot be read"),
        ("a.csv", "obs,action\n[1 2],1\n[1 2 3],2\n", "expected lists of the same shape"),
        ("a.jsonl", '{"obs": 1}\n{"act": 1}\n', "expected the same names in every row"),
        ("a.jsonl", '{"obs": 1}\n[1]\n', "row 1 is list, expected an object"),
        ("a.jsonl", '{"obs": 1\n', "row 0 is not JSON"),
    ],
)
def test_a_table_of_text_with_a_fault_is_refused_with_its_row(tmp_path, name, text, problem):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConversionError, match=problem):
        open_arrays(tmp_path / name, "csv" if name.endswith("csv") else "jsonl", name)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (table(), "table = pandas.read_pickle('a.pkl')"),
        ([1, 2, 3], "expected a list of dicts"),
        (7, "expected a dict of arrays or a list"),
        ([*episodes(), {"observations": OBS}], "element 3 of the list differs from the first element in actions"),
        ([(OBS[0], ACTION[0])], "expected a list of dicts, or of tuples"),
        ([(OBS[0], ACTION[0], OBS[0], OBS[0], True)], r"expected a step \(s, a, r, s', done\)"),
        ([{"obs": OBS[0], "action": OBS[1]}] * 3, "expected arrays of episodes or values of steps"),
    ],
)
def test_a_pickle_that_is_not_certainly_episodes_or_steps_is_refused(tmp_path, value, problem):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(value))
    with pytest.raises(ConversionError) as caught:
        open_arrays(tmp_path / "a.pkl", "pickle", "a.pkl")
    assert problem.replace("\\", "") in f"{caught.value} {caught.value.hint}"


def test_a_column_with_an_empty_cell_is_a_float_column_with_nan(tmp_path):
    (tmp_path / "a.csv").write_text("obs,action\n1,2\n,3\n")
    with open_arrays(tmp_path / "a.csv", "csv", "a.csv") as file:
        np.testing.assert_array_equal(file.read_all("obs"), [1, np.nan])
        assert file.arrays["action"].dtype == np.int64


def test_a_table_is_parsed_twice_and_not_for_each_column(tmp_path, monkeypatch):
    rows = 3 * text_tables._BATCH_ROWS
    lines = [json.dumps({"obs": row, "action": row, "reward": 0.5}) for row in range(rows)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    passes = []
    parse = json_tables.JsonLinesFile.parse
    monkeypatch.setattr(json_tables.JsonLinesFile, "parse", lambda self: passes.append(0) or parse(self))

    with open_arrays(tmp_path / "a.jsonl", "jsonl", "a.jsonl") as file:
        for blocks in zip(*(file.blocks(name, 100) for name in file.arrays), strict=True):
            assert len({len(block) for block in blocks}) == 1
    assert len(passes) == 2


def test_numbers_that_are_not_those_of_one_array_stay_columns(tmp_path, settings):
    frame = table().rename(columns={"obs_2": "obs_5"})
    frame.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(ConversionError, match=r"it has no dataset\.toml"):
        download(str(tmp_path / "a.parquet"), settings=settings)


def test_tables_beside_arrays_are_not_data(tmp_path, settings):
    folder = tmp_path / "runs"
    folder.mkdir()
    WRITERS["arrays.npz"](folder / "arrays.npz")
    (folder / "log.csv").write_text("epoch,loss\n1,0.5\n")

    assert StoredDataset(download(str(folder), settings=settings)).episodes.lengths.tolist() == LENGTHS


def test_stored_datasets_are_not_taken_for_arrays(tmp_path, settings):
    WRITERS["arrays.npz"](tmp_path / "arrays.npz")
    download(str(tmp_path / "arrays.npz"), settings=settings)
    with pytest.raises(ConversionError, match="it has stored datasets"):
        download(str(settings.home), settings=settings)


def test_a_column_that_is_two_fields_has_the_same_values_in_both(tmp_path, settings):
    folder = tmp_path / "runs"
    folder.mkdir()
    poses = np.arange(3 * text_tables._BATCH_ROWS)
    pd.DataFrame({"pose": poses, "reward": 0.5}).to_csv(folder / "a.csv")
    (folder / "dataset.toml").write_text('[fields]\nobservation = "pose"\naction = "pose"')

    stored = StoredDataset(download(str(folder), settings=settings))

    np.testing.assert_array_equal(stored.column(("observation",)), poses)
    np.testing.assert_array_equal(stored.column(("action",)), poses)
