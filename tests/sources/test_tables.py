"""Tables of text: certain cells are read with their values, and doubtful cells are refused with the row."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from layouts_tables import COLUMNS, ROWS, csv_text, json_lines

from datasets_rl import download, load
from datasets_rl.errors import ConversionError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources.flat import csv_tables
from datasets_rl.sources.flat.formats import open_arrays
from datasets_rl.sources.local.files import check_files, draft_description

HEAD = "obs,action,reward,done\n"


def opened(path, data, **options):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return open_arrays(path, "csv" if ".csv" in path.name or ".tsv" in path.name else "jsonl", path.name, **options)


def rows_of(path, data, name, **options):
    with opened(path, data, **options) as file:
        return file.read_all(name)


def counts_of(path, data):
    path.write_bytes(data.encode())
    return {decision.rule: decision.count for decision in check_files(path).decisions}


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([[0, 1], [0.5, 1]], np.array([[0, 1], [0.5, 1]])),
        ([[0.5, 1], [0, 1]], np.array([[0.5, 1], [0, 1]])),
        ([[[0, 1], [2, 3]], [[0.5, 1], [2, 3]]], np.array([[[0, 1], [2, 3]], [[0.5, 1], [2, 3]]])),
        ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])),
        ([[True, False], [True, True]], np.array([[True, False], [True, True]])),
        ([[2**60 + 1, 2], [3, 4]], np.array([[2**60 + 1, 2], [3, 4]])),
        ([[None, 1], [0.5, 1]], np.array([[np.nan, 1], [0.5, 1]])),
        ([2**60 + 1, 3], np.array([2**60 + 1, 3])),
        ([0, 0.5], np.array([0, 0.5])),
        ([1e300, 0], np.array([1e300, 0])),
    ],
)
def test_numbers_of_both_kinds_are_one_array(tmp_path, name, cells, expected):
    rows = [{"obs": cell, "action": 1} for cell in cells]
    table = "obs,action\n" + "".join(f'"{json.dumps(cell)}",1\n' for cell in cells)

    values = rows_of(tmp_path / name, table if name == "a.csv" else json_lines(rows), "obs")

    assert values.dtype == expected.dtype
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ([[1, 2], [1, 2, 3]], "expected lists of the same shape"),
        ([[1, 2], 3], "expected lists of the same shape"),
        ([1, 2**63], "expected integers that fit into int64"),
        ([[1, -(2**63) - 1], [1, 2]], "expected integers that fit into int64"),
        ([2**53 + 1, 0.5], "float64 does not hold such integers exactly"),
        ([[2**53 + 1, 1], [0.5, 1]], "float64 does not hold such integers exactly"),
        ([[2**53 + 1, 0.5], [0.5, 1]], "unreadable list"),
        ([2**53 + 1, None], "float64 does not hold such integers exactly"),
        ([0.5, "NA"], r"text \('NA' at row [12]\), expected numbers, or texts alone"),
        ([0.5, True], "expected numbers, or texts alone"),
        ([["a", "b"], ["a", "b"]], "unreadable list"),
        ([None, None], "every cell is empty"),
    ],
)
def test_cells_that_no_dtype_holds_are_refused_with_the_row(tmp_path, name, cells, problem):
    texts = ["" if cell is None else cell if isinstance(cell, str) else json.dumps(cell) for cell in cells]
    table = "obs,action\n" + "".join('"{}",1\n'.format(cell.replace('"', '""')) for cell in texts)
    rows = [{"obs": cell, "action": 1} for cell in cells]

    with pytest.raises(ConversionError, match=problem):
        opened(tmp_path / name, table if name == "a.csv" else json_lines(rows))


@pytest.mark.parametrize("cell", ["[0.1 0.2 ... 0.9]", "array([1., 2.])", "{'x': 1}", "tensor([1.])", "[1 [2]"])
def test_lists_that_cannot_be_read_are_not_stored_as_texts(tmp_path, cell):
    with pytest.raises(ConversionError, match="unreadable list"):
        opened(tmp_path / "a.csv", f'obs,action\n"{cell}",1\n"{cell}",2\n')


def test_a_column_without_a_usual_name_may_have_texts_of_any_kind(tmp_path):
    text = "obs,action,note,empty\n1,2,slow,\n2,3,7,\n3,4,,\n"

    assert rows_of(tmp_path / "a.csv", text, "note") == ["slow", "7", ""]
    with opened(tmp_path / "b.csv", text) as file:
        assert file.readable == ["obs", "action", "note"]
        with pytest.raises(ConversionError, match="empty: every cell is empty"):
            file.read_all("empty")


def test_a_described_column_that_cannot_be_read_is_refused_with_its_cells(tmp_path):
    (tmp_path / "a.csv").write_text("obs,action,x\n1,2,[1 2]\n2,3,5\n")
    (tmp_path / "dataset.toml").write_text('[fields]\nreward = "x"')
    with pytest.raises(ConversionError, match=r"x cannot be read: the cells are .*'\[1 2\]' at row 1"):
        check_files(tmp_path)


def test_nan_and_empty_cells_are_counted(tmp_path):
    text = HEAD + ",1,nan,0\n0.5,2,inf,1\n"
    assert counts_of(tmp_path / "a.csv", text)["not-finite"] == 3


def test_an_empty_flag_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text(HEAD + "1,1,0.5,0\n2,2,0.5,\n")
    with pytest.raises(ConversionError, match="done is nan at row 1, expected 0 or 1"):
        check_files(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        (csv_text(";"), {"other-delimiter": 1}),
        (csv_text("\t"), {"other-delimiter": 1}),
        (csv_text(";", point=","), {"other-delimiter": 1, "decimal-comma": 1}),
        (csv_text(), {}),
    ],
)
def test_delimiters_and_decimal_commas_are_counted(tmp_path, text, rules):
    counts = counts_of(tmp_path / "a.csv", text)
    assert {rule: counts[rule] for rule in ("other-delimiter", "decimal-comma") if rule in counts} == rules


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("obs;action\n1,234;1\n5,678;2\n", "number with a comma"),
        ("obs;action\n1,5;0.5\n2,5;1.5\n", "number with a decimal comma"),
        ("obs;action\n1.234,5;1\n2,5;2\n", "text"),
        ('obs,action\n"0,5",1\n"1,5",2\n', "number with a decimal comma"),
        ("obs;action\n0,5;[1,5]\n1,5;[2,5]\n", "number with a decimal comma"),
    ],
)
def test_a_comma_that_may_separate_thousands_or_elements_is_refused(tmp_path, text, problem):
    with pytest.raises(ConversionError, match=problem):
        opened(tmp_path / "a.csv", text)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_the_forms_of_spreadsheets_have_the_same_values(tmp_path, encoding, end, quote):
    data = csv_text(end=end, quote=quote).encode(encoding)
    with opened(tmp_path / "a.csv", data) as file:
        for name, values in COLUMNS.items():
            np.testing.assert_array_equal(file.read_all(name), values)


def test_columns_with_names_after_a_dot_are_fields_of_the_observation(tmp_path):
    text = csv_text()
    for number, axis in enumerate("xyz"):
        text = text.replace(f"obs_{number}", f"obs.{axis}")
    (tmp_path / "a.csv").write_text(text)

    found = check_files(tmp_path / "a.csv")

    assert {use.key: use.array for use in found.description.fields if use.key.startswith("obs")} == {
        f"observation.{axis}": f"obs.{axis}" for axis in "xyz"
    }
    assert found.first.rows[0].values["observation.y"] == COLUMNS["obs_1"][0]  # not of pandas


def test_columns_without_a_name_are_dropped_only_if_they_are_empty(tmp_path):
    assert rows_of(tmp_path / "a.csv", "obs;action;\n1;2;\n3;4;\n", "obs").tolist() == [1, 3]
    with pytest.raises(ConversionError, match="a column has values and no name"):
        opened(tmp_path / "a.csv", "obs;action;\n1;2;\n3;4;5\n")


def test_objects_in_cells_are_columns_of_their_values(tmp_path):
    text = 'state,action\n"{""pos"": [1, 2.5], ""on"": true}",1\n"{""on"": false, ""pos"": [3, 4]}",2\n'

    assert rows_of(tmp_path / "a.csv", text, "state/pos").tolist() == [[1, 2.5], [3, 4]]
    assert rows_of(tmp_path / "a.csv", text, "state/on").tolist() == [True, False]
    with pytest.raises(ConversionError, match="state has pos in row 2, expected pos, on"):
        opened(tmp_path / "a.csv", text.replace('""on"": false, ', ""))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_infos_that_differ_from_row_to_row_are_left_out_and_counted(tmp_path, name):
    infos = [{"x": 1}, {"x": 2}, {}, {"x": 1, "TimeLimit.truncated": True}]
    rows = [{"obs": row, "action": 1, "reward": 0.5, "done": row == 3, "info": infos[row]} for row in range(4)]
    cells = ["{}".format(json.dumps(info).replace('"', '""')) for info in infos]
    table = HEAD.replace("done", "done,info") + "".join(
        f'{row},1,0.5,{int(row == 3)},"{cells[row]}"\n' for row in range(4)
    )
    (tmp_path / name).write_text(table if name == "a.csv" else json_lines(rows))

    found = check_files(tmp_path / name)

    assert [use.array for use in found.description.left_out] == ["info"]
    assert {decision.rule: decision.count for decision in found.decisions}["left-out"] == 1
    with open_arrays(tmp_path / name, name[2:], name) as file:
        assert file.read_all("obs").tolist() == [0, 1, 2, 3]


def test_a_table_without_a_header_is_refused_with_a_template_that_names_its_columns(tmp_path):
    text = csv_text(header=False)
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ConversionError, match="what are the 8 columns"):
        check_files(tmp_path / "a.csv")
    drafted = draft_description(tmp_path / "a.csv")
    assert drafted.questions == ("what are the 8 columns? The first row has numbers instead of names",)

    names = ", ".join(f'"{name}"' for name in COLUMNS)
    placeholders = ", ".join(f'"column_{number}"' for number in range(8))
    answered = drafted.text.replace(f"# columns = [{placeholders}]", f"columns = [{names}]")
    (tmp_path / "dataset.toml").write_text(answered)

    with opened(tmp_path / "a.csv", text, columns=[*COLUMNS]) as file:
        for name, values in COLUMNS.items():
            np.testing.assert_array_equal(file.read_all(name), values)
    assert check_files(tmp_path).episodes == 3


@pytest.mark.parametrize(
    ("description", "problem"),
    [
        ('columns = ["obs", "action"]', "row 0 has 8 cells, expected 2"),
        ('columns = ["a", "a"]', "columns has a name twice"),
        ("columns = [1]", "columns is .*, expected a list of strings"),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path, description, problem):
    (tmp_path / "a.csv").write_text(csv_text(header=False))
    (tmp_path / "dataset.toml").write_text(description)
    with pytest.raises(ConversionError, match=problem):
        check_files(tmp_path)


def test_columns_of_files_that_are_not_csv_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", obs=np.ones(3), action=np.ones(3))
    (tmp_path / "dataset.toml").write_text('columns = ["obs", "action"]')
    with pytest.raises(ConversionError, match="columns names the columns of a CSV file, but the files are npz"):
        check_files(tmp_path)


def test_stated_columns_over_a_header_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text(csv_text())
    (tmp_path / "dataset.toml").write_text(f"columns = {json.dumps([*COLUMNS])}")
    with pytest.raises(ConversionError, match=r"text \('obs_0' at row 0\)"):
        check_files(tmp_path)


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz"])
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-20], lambda data: data[:60] + b"\xff" + data[61:], lambda _: b"x"]
)
def test_a_damaged_gzip_file_is_refused(tmp_path, name, damage):
    text = csv_text() if "csv" in name else json_lines(ROWS)
    with pytest.raises(ConversionError, match=r"gzip stream|cannot be read|is not JSON"):
        opened(tmp_path / name, damage(gzip.compress(text.encode())))


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_tables, "_LINE_MAX_CHARS", 1 << 16)
    with pytest.raises(ConversionError, match="a line has more than 65,536 characters"):
        opened(tmp_path / "a.csv.gz", gzip.compress(b"obs,action\n" + b"1" * (1 << 20)))


def test_a_name_for_the_trial_of_each_row_marks_the_episodes_or_is_refused(tmp_path):
    text = "episode_id,obs,action\n" + "".join(f"{name},{row},1\n" for row, name in enumerate("bbbaac"))
    (tmp_path / "a.csv").write_text(text)
    found = check_files(tmp_path / "a.csv")
    assert (found.episodes, found.description.by, found.description.arrays) == (3, "column", ("episode_id",))

    (tmp_path / "a.csv").write_text(text.replace("c,5", "b,5"))
    with pytest.raises(ConversionError, match="episode_id is b in 2 separate ranges of rows"):
        check_files(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text(text.replace("episode_id", "trial").replace("c,5", ",5").replace("b,0", "1,0"))
    assert check_files(tmp_path / "a.csv").episodes == 4


def test_a_json_file_of_other_structure_is_refused(tmp_path):
    settings = Settings(home=tmp_path / "home", progress=False, jobs=1)
    for text, problem in (
        ("[1, 2]", "expected a list of dicts"),
        ('{"obs": [1,\n 2', "the file is not JSON"),
        ('"text"', "the file has a str, expected a dict of arrays"),
    ):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(ConversionError, match=problem):
            download(str(tmp_path / "a.json"), settings=settings)


def test_json_files_of_a_folder_are_data_only_if_rllib_named_them(tmp_path):
    settings = Settings(home=tmp_path / "home", progress=False, jobs=1)
    folder = tmp_path / "runs"
    folder.mkdir()
    for name in ("config.json", "result.json"):
        (folder / name).write_text("{}")
    with pytest.raises(ConversionError, match="no source knows the layout"):
        download(str(folder), settings=settings)
    (folder / "data.csv").write_text(csv_text())
    assert StoredDataset(download(str(folder), settings=settings)).episodes.lengths.tolist() == [4, 6, 3]


@pytest.mark.parametrize("row", [" {} {}  {} \n", "{:.18e} {:.18e} {:.18e}\n", "{}, {}, {}\n", "{}\t{}\t{}\n"])
def test_a_table_of_numbers_with_spaces_is_read_by_a_description_that_the_error_names(tmp_path, row):
    folder = tmp_path / "mine"
    folder.mkdir()
    values = np.random.default_rng(0).normal(size=(30, 3))
    (folder / "run.txt").write_text("".join(row.format(*one) for one in values))
    with pytest.raises(ConversionError, match=r"run\.txt is a table of numbers") as caught:
        draft_description(folder)
    with pytest.raises(ConversionError, match=r"run\.txt is a table of numbers"):
        download(str(folder), settings=Settings(home=tmp_path / "home", progress=False))
    assert 'format = "csv", files = ["*.txt"] and columns = [' in str(caught.value.remedy)

    text = 'format = "csv"\nfiles = ["*.txt"]\ncolumns = ["obs", "action", "reward"]'
    (folder / "dataset.toml").write_text(text)
    stored = StoredDataset(download(str(folder), settings=Settings(home=tmp_path / "home", progress=False)))

    assert [stored.column(key).reshape(-1).tolist() for key in (("observation",), ("action",))] == values.T[:2].tolist()


def test_a_readme_is_not_a_table_of_numbers(tmp_path):
    (tmp_path / "README.txt").write_text("2024 was the year of the recording\n")

    with pytest.raises(ConversionError, match=r"neither dataset\.toml nor a file") as caught:
        draft_description(tmp_path)

    assert len(caught.value.problems) == 1


def test_a_list_of_one_column_is_a_vector_of_one_element(tmp_path):
    (tmp_path / "a.csv").write_text(
        "\n".join(["obs_0,obs_1,u_volt", *(f"{row},{row + 0.5},{row}" for row in range(9))])
    )
    shapes = []
    for action in ("'u_volt'", "['u_volt']"):
        (tmp_path / "dataset.toml").write_text(f"[fields]\naction = {action}\nreward = 0.0")
        shapes += [column.shape for column in check_files(tmp_path).columns if column.key == ("action",)]

    assert shapes == [(), (1,)]


@pytest.mark.parametrize(
    ("head", "cell", "shape"),
    [("action", "0.5", (1,)), ("action", "1", ()), ("action_0", "0.5", (1,)), ("action[0]", "1", (1,))],
)
def test_a_continuous_action_of_one_column_is_a_vector_and_a_discrete_action_is_a_number(tmp_path, head, cell, shape):
    rows = [f"{row},{row + 0.5},{cell},1" for row in range(9)]
    (tmp_path / "a.csv").write_text("\n".join([f"obs_0,obs_1,{head},reward", *rows]))

    assert [column.shape for column in check_files(tmp_path / "a.csv").columns if column.key == ("action",)] == [shape]


def test_an_observation_of_one_float_is_a_vector_and_its_bounds_may_be_a_list(tmp_path):
    (tmp_path / "a.csv").write_text("\n".join(["obs,u,reward", *(f"{row / 9},{row / 9},1" for row in range(9))]))
    (tmp_path / "dataset.toml").write_text("[fields]\naction = { array = 'u', low = [0.0], high = [1.0] }")

    stored = load(tmp_path, batch_size=2, root=tmp_path / "root", final_unknown="keep")
    assert stored.specs["observation"].shape == (1,)
    assert stored[:]["next", "observation"].shape == (9, 1)
    assert stored.specs["action"].high.tolist() == [1]
