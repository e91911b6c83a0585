"""OpenML's tables as TorchRL reads them, and as logs of a bandit, compared with scikit-learn on the same responses."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from oracles import comparison
from raw.openml import NUMBERS, SEVEN, SMALL, Table, answer, draw, openml, put

from datasets_rl import OpenMLExperienceReplay, Selection, downloading, load
from datasets_rl.errors import ConversionError, FetchError, OfflineError, UnknownIdError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.samplers import SamplerWithoutReplacement
from datasets_rl.settings import Settings
from datasets_rl.sources import find, get_source
from datasets_rl.store import version_folder

IDS = {
    "adult_num": ("adult", 1),
    "adult_onehot": ("adult", 1),
    "mushroom_num": ("mushroom", 1),
    "mushroom_onehot": ("mushroom", 1),
    "covertype": ("covertype", 3),
    "shuttle": ("shuttle", 1),
    "magic": ("MagicTelescope", 1),
}


@pytest.fixture
def answers(tmp_path):
    for table in SEVEN.values():
        put(tmp_path / "answers", table)
    put(tmp_path / "answers", SMALL)
    return tmp_path / "answers"


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home", progress=False, retries=0)


@pytest.fixture
def convert(answers, settings):
    def run(name, **options):
        return StoredDataset(downloading.download(f"openml/{name}", from_local=answers, settings=settings, **options))

    return run


@pytest.fixture
def asked(answers, monkeypatch):
    """Redirect the requests of scikit-learn to www.openml.org to the folder."""

    def opened(request, *_, **__):
        body = io.BytesIO(answer(answers, request.full_url))
        body.info = dict
        return body

    monkeypatch.setattr("sklearn.datasets._openml.urlopen", opened)


def reference(name):
    """Return `X` and `y` as documented for TorchRL's class, computed with scikit-learn."""
    from sklearn.datasets import fetch_openml
    from sklearn.preprocessing import LabelEncoder, OneHotEncoder, StandardScaler

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # With pandas 3, scikit-learn's other parser does not accept categories whose names are numbers.
        chosen = {"return_X_y": True, "as_frame": True, "parser": "liac-arff", "cache": False}
        samples, classes = fetch_openml(IDS[name][0], version=IDS[name][1], **chosen)
    if name.startswith("adult"):
        samples = samples.dropna()
        classes = samples.pop("occupation")
    if not name.startswith(("adult", "mushroom")):
        return StandardScaler().fit_transform(samples), LabelEncoder().fit_transform(classes)
    nominal = [column for column in samples if isinstance(samples[column].dtype, pd.CategoricalDtype)]
    coded = samples.copy()
    for column in nominal:
        coded[column] = LabelEncoder().fit_transform(samples[column])
    classes = LabelEncoder().fit_transform(classes)
    if name.endswith("_num"):
        return StandardScaler().fit_transform(coded), classes
    numeric = [column for column in samples if column not in nominal]
    scaled = StandardScaler().fit_transform(samples[numeric]) if numeric else np.empty((len(samples), 0))
    return np.hstack([scaled, OneHotEncoder(sparse_output=False).fit_transform(coded[nominal])]), classes


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("name", IDS)
def test_samples_and_classes_are_to_the_last_bit_those_of_scikit_learn(convert, name):
    samples, classes = reference(name)

    stored = convert(name)

    assert np.array_equal(stored.column(("observation",)), samples)
    assert np.array_equal(stored.column(("action",)), classes)
    assert stored.column(("observation",)).dtype == np.float64
    assert comparison.deep_problems(stored.folder) == []


@pytest.mark.usefixtures("asked")
def test_a_table_that_is_read_in_many_blocks_differs_only_by_rounding(convert, monkeypatch):
    samples, classes = reference("covertype")
    monkeypatch.setattr("datasets_rl.read.arff._BLOCK_BYTES", 700)
    monkeypatch.setattr("datasets_rl.sources.openml.reader._CHUNK_BYTES", 100)

    stored = convert("covertype")

    assert np.allclose(stored.column(("observation",)), samples, rtol=1e-13, atol=1e-14)
    assert np.array_equal(stored.column(("action",)), classes)


def test_the_torchrl_keys_are_the_same_tensors_under_other_names(convert, tmp_path):
    stored = convert("shuttle")

    dataset = OpenMLExperienceReplay("shuttle", 7, tmp_path / "home" / "openml")
    batch = dataset.sample()

    assert batch["X"].data_ptr() == batch["observation"].data_ptr()
    assert torch.equal(batch["y"], batch["action"])
    assert (batch["X"].dtype, batch["X"].shape) == (torch.float64, (7, 4))
    assert (batch["y"].dtype, batch["y"].shape) == (torch.int64, (7,))
    assert np.array_equal(dataset["X"].numpy(), stored.column(("observation",)))
    assert np.array_equal(dataset["y"].numpy(), stored.column(("action",)))
    assert np.array_equal(dataset[5:9]["X"].numpy(), stored.column(("observation",))[5:9])
    assert "X" in dataset
    assert isinstance(dataset.sampler, SamplerWithoutReplacement)
    assert dataset.max_outcome_val == dataset["y"].max().item() == 4
    assert dataset.classes == ["1", "2", "3", "4", "5"]


def test_every_row_is_an_episode_of_one_step_with_reward_1(convert):
    stored = convert("magic")

    assert stored.episodes.lengths.tolist() == [1] * 210
    assert stored.column(("next", "reward")).tolist() == [[1.0]] * 210
    assert stored.column(("next", "terminated")).all()
    assert not stored.column(("next", "truncated")).any()
    assert ("next", "observation") not in stored.keys()  # noqa: SIM118 -- keys is not that of a mapping
    assert stored.manifest.time_limit == 1


def test_the_spec_of_the_action_is_one_of_the_classes(convert, tmp_path):
    convert("covertype")

    dataset = load("openml/covertype", root=tmp_path / "home" / "openml")

    assert dataset.specs["action"].space.n == dataset.specs["y"].space.n == 7
    assert dataset.specs["X"].shape == (4,)
    assert set(dataset.specs.keys()) == set(dataset[:3].keys()) - {"index"}


def test_fields_that_are_left_out_have_no_second_name(convert):
    dataset = OpenMLExperienceReplay(
        "magic", 2, root=convert("magic").folder.parents[1], selection=Selection(keys=("action",))
    )

    assert set(dataset.sample().keys()) - {"index"} == {
        *("action", "y", "next", "episode", "done", "terminated", "truncated")
    }
    assert "X" not in dataset.specs


def test_observations_can_be_inverted_by_the_manifest(convert):
    """adult_onehot has scaled numbers and indicators, and both can be restored to the values of the file."""
    stored = convert("adult_onehot")
    said = stored.manifest.metadata
    mean, scale = (np.load(stored.folder / said[name]["file"]) for name in ("mean", "scale"))
    columns, classes = json.loads(said["columns"]), json.loads(said["classes"])

    raw = stored.column(("observation",)) * scale + mean
    sources = stored.episodes["source"]
    table = SEVEN["adult"]
    names = list(table.columns)
    for row, number in enumerate(sources.tolist()):
        line = dict(zip(names, table.rows[number], strict=True))
        assert "?" not in [line[name] for name in names if name != "income"]
        shown = {columns[at] for at in np.flatnonzero(raw[row, 2:] == 1) + 2}
        assert shown == {f"{name}={line[name]}" for name in ("age", "workclass", "sex")}
        assert np.isclose(raw[row, :2], [float(line["fnlwgt"]), float(line["education-num"])], rtol=1e-12).all()
        assert classes[stored.column(("action",))[row]] == line["occupation"]
    assert "age=10" not in columns  # declared, but in no row
    assert columns[2:7] == ["age=0", "age=1", "age=2", "age=3", "age=4"]


def test_missing_values_are_reported(convert):
    adult = {one.rule: one.count for one in convert("adult_num").manifest.decisions}
    mushroom = {one.rule: one.count for one in convert("mushroom_num").manifest.decisions}
    lacking = sum("?" in row[:-1] for row in SEVEN["adult"].rows)

    assert adult["missing-values"] == lacking > 0
    assert adult["other-class"] == 1
    assert mushroom["missing-is-a-value"] == 3
    assert mushroom["row-is-an-episode"] == 200
    assert "constant-column" not in mushroom
    assert "missing-values" not in mushroom
    # Soil_Type7 is always 0.
    assert {one.rule: one.count for one in convert("covertype").manifest.decisions}["constant-column"] == 1


def test_any_other_dataset_has_indicators_for_categories_and_its_authors(convert):
    manifest = convert("drawn@2").manifest

    assert json.loads(manifest.metadata["columns"]) == [
        *("size, in mm", "flat", "color=light blue", "color=red", "color=")
    ]
    assert manifest.metadata["class"] == "kind"
    assert json.loads(manifest.metadata["classes"]) == ["a", "b"]
    assert (manifest.license, manifest.homepage) == ("Public", "https://www.openml.org/d/77")
    assert manifest.citation.startswith("A. Uthor, B. Uthor; Vanschoren")
    assert manifest.revision == "data 77, file 5077"


def test_a_warning_of_openml_is_a_known_issue(answers, convert):
    put(answers, replace(SMALL, described={"warning": "rows are there twice"}))

    assert "OpenML reports: rows are there twice." in convert("drawn@2").manifest.known_issues


def test_quotes_of_both_kinds_comments_and_spaces_are_read(answers, convert):
    rows = [("1", "2", "'it''s'"), ("2", "3", "b")]
    place = put(answers, Table("drawn", 2, {"n": None, "m": None, "c": ("a", "b")}, rows, "c"))
    text = (
        "% a comment\r\n@RELATION x\r\n@ATTRIBUTE n REAL\r\n@attribute m Integer\r\n"
        "@Attribute c {'a, \\'b\\'', \"say \\\"x\\\"\", c d}\r\n@DATA\r\n"
        "1, 2,'a, \\'b\\''\r\n% another\r\n\r\n 3 ,4 , \"say \\\"x\\\"\" \r\n5,6,c d"
    )
    place.write_bytes(text.encode())

    stored = convert("drawn@2", hash_check=False)

    assert json.loads(stored.manifest.metadata["classes"]) == ["a, 'b'", "c d", 'say "x"']
    assert stored.column(("action",)).tolist() == [0, 2, 1]


def test_the_real_host_is_requested_and_its_responses_are_cached(answers, settings, tmp_path):
    with openml(answers) as server:
        folder = downloading.download("openml/magic", mirrors=[server.url], settings=settings, keep_raw=True)

    asked = [request.path for request in server.requests]
    assert asked[0] == "/api/v1/json/data/list/data_name/magictelescope/limit/2/data_version/1"
    assert [path.rpartition("/")[2] for path in asked] == ["1", "1120", "1120", *["MagicTelescope.arff"] * 2]
    assert [request.method for request in server.requests] == [*["GET"] * 3, "HEAD", "GET"]
    urls = get_source("openml").resolve("magic", Selection(), _Kept(answers)).assets
    assert urls[-1].urls == ("https://www.openml.org/data/v1/download/6120/MagicTelescope.arff",)
    raw = folder / "raw"
    again = downloading.download("openml/magic", from_local=raw, root=tmp_path / "again", settings=settings)
    assert (version_folder(again) / "rows.npy").read_bytes() == (version_folder(folder) / "rows.npy").read_bytes()


class _Kept:
    """An upstream with responses from a folder."""

    def __init__(self, folder):
        self._folder = folder

    def text(self, asset):
        assert asset.urls[0].startswith("https://www.openml.org/api/v1/json/data/")
        return (self._folder / asset.path).read_text()

    def with_size(self, asset):
        return asset


def test_a_dataset_that_is_not_active_is_refused_with_a_remedy(answers, settings):
    with openml(answers) as server, pytest.raises(UnknownIdError) as caught:
        downloading.download("openml/MagicTelescope@9", mirrors=[server.url], settings=settings)

    assert caught.value.message == "no dataset 'openml/MagicTelescope@9' among the active datasets of OpenML"
    assert caught.value.hint == "https://www.openml.org/search?type=data&q=MagicTelescope shows the versions in use"


@pytest.mark.parametrize(("answer", "problem"), [("{", "is not valid JSON"), ("{}", "has no data.dataset: '{}'")])
def test_an_unexpected_answer_is_named_by_the_dataset(answers, settings, answer, problem):
    search = answers / "api/v1/json/data/list/data_name/magictelescope/limit/2/data_version/9"
    search.parent.mkdir(parents=True, exist_ok=True)
    search.write_text(answer)

    with openml(answers) as server, pytest.raises(ConversionError) as caught:
        downloading.download("openml/MagicTelescope@9", mirrors=[server.url], settings=settings)

    assert f"OpenML's answer about MagicTelescope, version 9, {problem}" in caught.value.message
    assert "try again later" in caught.value.hint


def test_the_version_is_mentioned_only_after_a_request(settings, tmp_path):
    with pytest.raises(OfflineError) as offline:
        downloading.download("openml/magic", settings=replace(settings, offline=True))
    with pytest.raises(FetchError) as missing:
        downloading.download("openml/magic", settings=settings, from_local=tmp_path)

    assert "RLDS_OFFLINE" in offline.value.hint
    assert missing.value.hint == "give the file, or the folder of the file"
    assert offline.value.message.startswith("could not fetch OpenML's answer about MagicTelescope, version 1 (api/v1/")


def test_all_errors_of_a_table_are_reported_at_once(answers, convert):
    rows = [("1", "x", "red", "b", "3"), ("2", "3", "pink", "b", "3"), ("3", "3", "red", "b", "y")]
    put(answers, Table("drawn", 2, SMALL.columns, rows, "kind", aside=("row",)))

    with pytest.raises(ConversionError) as caught:
        convert("drawn@2")
    assert len(caught.value.problems) == 3


def test_names_and_versions():
    assert get_source("openml").ids() == sorted(IDS)
    assert find("openml/iris@1").params["version"] == 1
    for name in ("iris", "iris@0", "../x@1", "a/b@1", "iris@1/x"):
        with pytest.raises(UnknownIdError):
            find(f"openml/{name}")
    assert OpenMLExperienceReplay.available_datasets == tuple(sorted(IDS))


def test_neither_scikit_learn_nor_pandas_is_loaded_before_a_table_is_read():
    program = (
        "import sys, datasets_rl; from datasets_rl.cli.app import main; main(['list', 'openml/*', '--json']);"
        "print({'sklearn', 'pandas', 'scipy', 'torch'} & set(sys.modules))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_large_value_of_a_category_is_counted_once(answers, convert):
    table = draw("drawn", 2, "a;b:x|y|z;c:0|1", "c", 50, missing=0.2, seed=9)
    rows = [(*row[:-1], "0" if row[-1] == "?" else row[-1]) for row in table.rows]
    put(answers, Table("drawn", 2, table.columns, rows, "c"))

    stored = convert("drawn@2")
    indicators = stored.column(("observation",))[:, 1:]

    assert json.loads(stored.manifest.metadata["columns"]) == ["a", "b=x", "b=y", "b="]
    assert (indicators.sum(axis=1) == 1).all()
    assert len(stored) == sum(row[0] != "?" for row in rows)


def test_a_deep_verification_ignores_blanks_around_values(answers, convert):
    place = put(answers, SMALL)
    lines = place.read_text().splitlines()
    begin = lines.index("@data") + 1
    lines[begin:] = [line.replace(",", " ,  ") + "  " * (row % 2) for row, line in enumerate(lines[begin:])]
    place.write_text("\n".join(lines))
    digest = hashlib.md5(place.read_bytes()).hexdigest()
    description = answers / f"api/v1/json/data/{NUMBERS[SMALL.name]}"
    said = json.loads(description.read_text())
    said["data_set_description"]["md5_checksum"] = digest
    description.write_text(json.dumps(said))

    stored = convert(f"{SMALL.name}@{SMALL.version}")

    assert comparison.deep_problems(stored.folder) == []
