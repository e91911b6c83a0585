"""`list_datasets` and `info`, which need no network."""

from __future__ import annotations

import pytest
from stored_data import columns, store_dataset, trajectory

from datasets_rl import info, list_datasets
from datasets_rl.errors import InvalidArgumentError, ManifestError, UnknownIdError
from datasets_rl.preprocessing import Recipe, preprocess
from datasets_rl.store import version_folder

ID = "demo/pendulum"


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    store_dataset(tmp_path / "demo" / "pendulum", [trajectory(4, seed=1), trajectory(3, seed=2)], columns(), id=ID)
    return tmp_path / "demo" / "pendulum"


@pytest.fixture(scope="module")
def descriptions(tmp_path_factory):
    """What `info` says of each dataset of the catalog, in a home without any."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        return {one: info(one) for one in list_datasets()}


@pytest.mark.parametrize(
    ("pattern", "source", "expected"),
    [
        ("demo/pendul", "", [ID]),
        ("PENDULUM", "demo", [ID]),
        ("hopper-medium-v?", "d4rl", [f"d4rl/hopper-medium-v{number}" for number in range(3)]),
        ("nothing-like-this", "", []),
    ],
)
def test_ids_are_found_by_a_part_or_a_glob(tmp_path, monkeypatch, pattern, source, expected):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))

    assert list_datasets(pattern, source=source) == expected


def test_stored_datasets_are_listed_with_derived_ones(stored):
    preprocess(stored, Recipe.inline(["keep_lengths:4"]), name="long")

    assert list_datasets(downloaded=True) == [ID, f"{ID}@long"]
    assert list_datasets(source="d4rl", downloaded=True) == []


@pytest.mark.usefixtures("stored")
def test_a_source_that_does_not_exist_is_an_error():
    with pytest.raises(UnknownIdError, match="nowhere"):
        list_datasets(source="nowhere")


def test_info_of_a_dataset_that_is_not_stored_is_the_entry_of_the_catalog():
    found = info("d4rl/hopper-medium-v2")

    assert (found.id, found.folder, found.manifest, found.versions) == ("d4rl/hopper-medium-v2", None, None, ())
    assert found.entry.license == "CC BY 4.0"


def test_info_of_a_stored_dataset_has_its_manifest_and_earlier_versions(stored):
    preprocess(stored, Recipe.inline(["keep_lengths:4"]), in_place=True)
    found = info(ID)

    assert (found.id, found.folder, found.manifest.episodes) == (ID, stored, 1)
    assert [folder.is_dir() for folder in found.versions] == [True]
    assert info(stored) == info(ID).__class__(ID, None, stored, found.summary, found.versions)


@pytest.mark.usefixtures("stored")
def test_info_of_an_id_that_no_catalog_has_is_an_error():
    with pytest.raises(UnknownIdError, match="pendulu"):
        info("demo/pendulu")


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"env": "hopper"}, lambda one: "hopper" in one.environment.lower()),
        ({"env": "*-v5"}, lambda one: one.environment.endswith("-v5")),
        ({"kind": "pixels"}, lambda one: "pixels" in one.observation.kind),
        ({"kind": "state", "source": "d4rl"}, lambda one: one.observation.kind == "state"),
        ({"action": "discrete"}, lambda one: one.action.kind == "discrete"),
        ({"tag": "expert"}, lambda one: "expert" in one.tags),
        ({"tag": ["Human", "manipulation"]}, lambda one: {"human", "manipulation"} <= set(one.tags)),
    ],
)
def test_filters_choose_by_the_descriptions(descriptions, filters, expected):
    chosen = list_datasets(**filters)
    others = set(list_datasets(source=filters.get("source", ""))) - set(chosen)

    assert chosen
    assert all(map(expected, chosen.infos))
    assert not any(expected(descriptions[one]) for one in others)


def test_ids_that_begin_with_the_pattern_come_first():
    found = list_datasets("hopper")
    begins = [one.partition("/")[2].lower().startswith("hopper") for one in found]
    words = ["/hopper" in one.lower() or "-hopper" in one for one in found]

    assert begins == sorted(begins, reverse=True)
    assert words == sorted(words, reverse=True)
    assert not words[-1]
    assert any("ChopperCommand" in one for one in found)


@pytest.mark.parametrize("pattern", ["d4rl", "d4rl/"])
def test_the_name_of_a_source_matches_its_ids_only(pattern):
    assert {one.partition("/")[0] for one in list_datasets(pattern)} == {"d4rl"}
    assert any(one.startswith("minari/D4RL/door") for one in list_datasets("D4RL/door"))


def test_a_kind_that_does_not_exist_is_an_error():
    with pytest.raises(InvalidArgumentError, match="expected one of pixels, state"):
        list_datasets(kind="image")


def test_the_ids_are_a_list_and_have_descriptions_and_a_table():
    found = list_datasets("hopper-medium-v2")

    assert found == ["d4rl/hopper-medium-v2"]
    assert (found.infos[0].episodes, found.infos[0].download_bytes) == (2187, 152_756_557)
    assert "<td>~1,000,000</td>" in found._repr_html_()


def test_a_stored_dataset_has_its_own_figures_and_a_derived_one_no_download(stored):
    preprocess(stored, Recipe.inline(["keep_lengths:4"]), name="long")
    original, derived = list_datasets(downloaded=True).infos

    assert (original.steps, original.episodes, original.basis["steps"].kind) == (7, 2, "exact")
    assert (original.download_bytes, original.environment) == (482_907, "Pendulum-v1")
    assert (derived.steps, derived.episodes, derived.download_bytes, derived.addresses) == (4, 1, None, ())
    assert (derived.is_derived, derived.origin) == (True, "derived: keep_lengths:4")


def test_a_damaged_dataset_is_listed_as_such(stored):
    (version_folder(stored) / "manifest.json").write_text("{}")
    (found,) = list_datasets(downloaded=True).infos

    assert (found.damaged, found.origin) == (True, "damaged")
    with pytest.raises(ManifestError):
        info(ID)


def test_a_mixture_has_the_figures_of_its_members(stored, tmp_path):
    (tmp_path / "mixes").mkdir()
    path = tmp_path / "mixes" / "mix.toml"
    path.write_text(f'[[member]]\ndataset = "{ID}"\nweight = 3\n[[member]]\ndataset = "../demo/pendulum"\nweight = 1\n')
    found = info(path)

    assert [(one.info.folder, one.weight) for one in found.members] == [(stored, 3), (stored, 1)]
    assert (found.steps, found.episodes, found.observation) == (14, 4, info(ID).observation)
    path.write_text('[[member]]\ndataset = "d4rl/hopper-medium-v2"\n[[member]]\ndataset = "openx/bridge"\n')
    assert (info(path).steps, info(path).observation, info(path).score) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no toml", "is not valid TOML"),
        ("", r"has no \[\[member\]\] tables"),
        ("[[member]]\nweight = 1", "member 0 has no dataset"),
        ("member = 3", r"has no \[\[member\]\] tables"),
    ],
)
def test_a_file_without_members_is_not_a_mixture(tmp_path, text, message):
    (tmp_path / "mix.toml").write_text(text)

    with pytest.raises(InvalidArgumentError, match=message):
        info(tmp_path / "mix.toml")
    with pytest.raises(InvalidArgumentError, match="nowhere"):
        info(tmp_path / "nowhere.toml")


def test_environments_that_begin_with_the_text_come_first():
    found = list(list_datasets(env="hopper"))

    assert "hopper" in found[0]
    assert found.index("atari_dqn/ChopperCommand/1") > found.index("d4rl/hopper-medium-v2")


@pytest.mark.parametrize("name", ["d4rl/hoper", "d4rl/hopper-medium-v9"])
def test_an_unknown_id_is_reported_with_ids_that_are_spelled_nearly_so(name):
    with pytest.raises(UnknownIdError) as caught:
        info(name)

    assert caught.value.nearest[0].startswith("d4rl/hopper-")
