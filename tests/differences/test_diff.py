"""Differences of two datasets: episodes, values, order, names, forms and descriptions."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from exports import export_stored
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from stored_data import FLAGS, Trajectory, Whole, columns, trajectory, write_dataset
from view_data import image_files

from datasets_rl import Recipe, Settings, diff, download, preprocess
from datasets_rl.differences import Place
from datasets_rl.errors import IntegrityError, InvalidArgumentError, NotADatasetError
from datasets_rl.format.schema import Column
from datasets_rl.ted.episode import EncodedImages, Episode, TextStates

EPISODES = [trajectory(20 + number, seed=number, terminated=number % 2 == 0) for number in range(8)]


def changed(one, key, step, element, value):
    """Return a trajectory with another value at a step. The step after the last is the final state."""
    kind = "states" if key in one.states else "steps"
    values = np.array(getattr(one, kind)[key])
    values[step, element] = value
    return replace(one, **{kind: {**getattr(one, kind), key: values}})


@pytest.fixture
def before(tmp_path):
    return write_dataset(tmp_path / "before", EPISODES).folder


def field_of(found, name):
    (one,) = (one for one in found.fields if one.name == name)
    return one


def test_a_dataset_equals_itself_and_a_copy(tmp_path, before):
    copy = write_dataset(tmp_path / "after", EPISODES).folder
    for other in (before, copy):
        found = diff(before, other)
        assert found.equal
        assert found.summary == "equal: 188 steps in 8 episodes"
        assert found.pairs == tuple((number, number) for number in range(8))
        assert {one.name for one in found.fields} >= {"action", "observation", "next.reward", "next.terminated"}
        assert field_of(found, "observation").compared == 188 + 8


@pytest.mark.parametrize(
    ("key", "step", "element"),
    [(("action",), 5, 1), (("observation",), 0, 2), (("observation",), 23, 0), (("next", "reward"), 22, 0)],
)
def test_one_other_value_is_found_with_its_place(tmp_path, before, key, step, element):
    episodes = [*EPISODES]
    episodes[3] = changed(EPISODES[3], key, step, element, 7.5)
    former = float((EPISODES[3].states if key in EPISODES[3].states else EPISODES[3].steps)[key][step, element])

    found = diff(before, write_dataset(tmp_path / "after", episodes).folder)
    one = field_of(found, ".".join(key))
    assert not found.equal
    assert found.summary.startswith("different: 8 episodes in both, 1 with other values of ")
    assert (one.steps, one.values, one.episodes) == (1, 1, (3,))
    assert one.first is not None
    assert (one.first.episodes, one.first.step, one.first.element) == ((3, 3), step, (element,))
    assert (one.first.before, one.first.after) == (former, 7.5)
    assert one.greatest == pytest.approx(7.5 - former)
    others = {one.name for one in found.different_fields} - {".".join(key)}
    assert others <= {"episode table: return"}


def test_nan_equals_nan_and_minus_zero_is_zero(tmp_path):
    pair = []
    for name, zero in (("a", 0.0), ("b", -0.0)):
        one = changed(changed(EPISODES[0], ("action",), 2, 0, np.nan), ("action",), 3, 0, zero)
        pair.append(write_dataset(tmp_path / name, [one]).folder)
    assert not field_of(diff(*pair), "action").values


def test_the_order_of_the_episodes_is_a_difference_and_hides_no_equal_episode(tmp_path, before):
    found = diff(
        before, write_dataset(tmp_path / "after", [EPISODES[number] for number in (0, 2, 1, 3, 4, 5, 7, 6)]).folder
    )
    assert found.pairs == ((0, 0), (1, 2), (2, 1), (3, 3), (4, 4), (5, 5), (6, 7), (7, 6))
    assert (found.moved, found.equal) == (2, False)
    assert not found.different_fields


def test_episodes_of_one_dataset_alone_are_named(tmp_path, before):
    new = trajectory(31, seed=50)
    found = diff(before, write_dataset(tmp_path / "after", [*EPISODES[:2], new, *EPISODES[4:]], id="toy/other").folder)
    assert (found.only_before, found.only_after) == ((2, 3), (2,))
    assert "2 only in" in found.summary
    assert "1 only in" in found.summary
    assert field_of(found, "action").equal


def test_a_copy_of_an_episode_is_paired_once(tmp_path, before):
    found = diff(before, write_dataset(tmp_path / "after", [*EPISODES, EPISODES[3]]).folder)
    assert (len(found.pairs), found.only_after) == (8, (8,))


def test_other_names_dtypes_and_forms_are_differences_of_the_schema_alone(tmp_path, before):
    renamed = [
        replace(
            one,
            states={("state",): one.states[("observation",)].astype(np.float64)},
            steps={**one.steps, ("next", "reward"): one.steps["next", "reward"].astype(np.float64)},
        )
        for one in EPISODES
    ]
    schema = [Column(("state",), np.dtype(np.float64), (3,), shared=True), *columns()[1:2]]
    schema += [Column(("next", "reward"), np.dtype(np.float64), (1,)), *FLAGS]
    found = diff(before, write_dataset(tmp_path / "after", renamed, schema).folder)
    assert field_of(found, "observation").other_name == "state"
    assert not found.different_fields
    assert [str(one) for one in found.changes if one.name.startswith("schema")] == [
        "schema: observation -> state: float32 [3] -> float64 [3]",
        "schema: next.reward: float32 [1], not after the last action -> float64 [1], not after the last action",
    ]
    assert not found.equal


def test_a_field_that_is_only_renamed_is_no_change_of_the_description(tmp_path, before):
    renamed = [replace(one, states={("state",): one.states[("observation",)]}) for one in EPISODES]
    schema = [Column(("state",), np.dtype(np.float32), (3,), shared=True), *columns()[1:]]
    found = diff(before, write_dataset(tmp_path / "after", renamed, schema).folder)
    assert not found.changes
    assert found.summary == "different: 8 episodes in both, with equal values, 1 field renamed"
    assert field_of(found, "observation").other_name == "state"


def test_a_renamed_field_with_other_values_in_some_episodes_is_compared(tmp_path, before):
    renamed = [replace(one, states={("state",): one.states[("observation",)].copy()}) for one in EPISODES]
    for number in range(1, 8):
        renamed[number].states[("state",)][number, 1] = 5
    schema = [Column(("state",), np.dtype(np.float32), (3,), shared=True), *columns()[1:]]
    one = field_of(diff(before, write_dataset(tmp_path / "after", renamed, schema).folder), "observation")
    assert (one.other_name, one.values, one.episodes) == ("state", 7, (1, 2, 3, 4, 5, 6, 7))


def test_a_field_of_another_size_is_named_in_the_summary_and_not_compared(tmp_path, before):
    wide = [
        replace(one, states={("observation",): np.repeat(one.states[("observation",)], 2, axis=1)}) for one in EPISODES
    ]
    schema = [Column(("observation",), np.dtype(np.float32), (6,), shared=True), *columns()[1:]]
    found = diff(before, write_dataset(tmp_path / "after", wide, schema).folder)
    assert found.uncompared == ("observation",)
    assert "observation" not in {one.name for one in found.fields}
    assert found.summary.startswith("different: 8 episodes in both, with equal values, observation not compared, ")


def test_long_texts_of_the_description_differ_also_after_the_part_that_is_shown(tmp_path):
    folders = [
        write_dataset(tmp_path / name, EPISODES, metadata={"notes": "x" * 300 + name}).folder
        for name in ("same", "also")
    ]
    (change,) = diff(*folders).changes
    assert change.name == "metadata: notes"
    assert (change.before[-4:], change.after[-4:]) == ("same", "also")
    assert max(len(change.before), len(change.after)) < 130


def test_the_order_of_the_keys_of_a_description_is_no_difference(tmp_path):
    specs = [{"low": 0, "high": 1}, {"high": 1, "low": 0}]
    folders = [
        write_dataset(tmp_path / str(number), EPISODES, metadata={"space": one}).folder
        for number, one in enumerate(specs)
    ]
    assert diff(*folders).equal


@pytest.mark.parametrize(
    ("value", "texts", "greatest"),
    [
        (np.nextafter(np.float32(1.5), np.float32(2)), ("1.5", "1.50000012"), pytest.approx(2**-23)),
        (np.float32(np.nan), ("1.5", "nan"), None),
        (np.float32(-np.inf), ("1.5", "-inf"), None),
    ],
)
def test_the_digits_of_two_values_show_that_they_differ(tmp_path, value, texts, greatest):
    folders = [
        write_dataset(tmp_path / str(number), [changed(EPISODES[0], ("action",), 3, 1, one)]).folder
        for number, one in enumerate((np.float32(1.5), value))
    ]
    one = field_of(diff(*folders), "action")
    assert one.first is not None
    assert (one.first.texts, one.greatest) == (texts, greatest)


def test_the_distance_of_integers_that_float64_does_not_have_is_exact(tmp_path):
    key = ("info", "seed")
    column = Column(key, np.dtype(np.int64), (1,))
    folders = []
    for number, seed in enumerate((-(2**62), -(2**62) + 3)):
        seeds = np.arange(20)[:, None] * 2**40
        seeds[7] = seed
        one = replace(EPISODES[0], steps={**EPISODES[0].steps, key: seeds})
        folders.append(write_dataset(tmp_path / str(number), [one], columns(column)).folder)
    assert [field_of(diff(*both), "info.seed").greatest for both in (folders, folders[::-1])] == [3, 3]


def test_a_long_text_is_shown_from_where_it_differs():
    place = Place(
        (0, 0), 0, (), f"{'open ' * 50}the drawer", f"{'open ' * 50}the <door> of the cupboard in the kitchen"
    )
    assert place.texts == ("'... open the drawer'", "'... open the <door> of the cupboard in the ...'")


@pytest.mark.parametrize("forms", [("raw", "encoded"), ("encoded", "encoded"), ("encoded", "raw")])
def test_images_are_compared_as_pixels(tmp_path, forms):
    key = ("observation", "camera")

    def stored(name, form, row=None):
        episodes = []
        for number in range(3):
            images = np.random.default_rng(number).integers(0, 256, (13, 8, 9, 3), np.uint8)
            if row is not None and number == 1:
                images[row, 2, 3, 1] ^= 64
            values = EncodedImages(image_files(images)) if form == "encoded" else images
            flags = trajectory(12, seed=number).steps
            episodes.append(Trajectory(flags, {key: values}))
        schema = [
            Column(key, np.dtype(np.uint8), (8, 9, 3), shared=True, form=form),
            *columns()[1:],
        ]
        return write_dataset(tmp_path / name, episodes, schema).folder

    folder = stored("a", forms[0])
    assert field_of(diff(folder, stored("b", forms[1])), "observation.camera").equal
    for row in (4, 12):
        one = field_of(diff(folder, stored(f"c{row}", forms[1], row)), "observation.camera")
        assert (one.steps, one.values, one.greatest) == (1, 1, 64.0)
        assert one.first is not None
        assert (one.first.episodes, one.first.step, one.first.element) == ((1, 1), row, (2, 3, 1))


def test_texts_are_compared_as_texts(tmp_path):
    def stored(name, words):
        column = Column(("instruction",), np.dtype(np.int32), (), text=True)
        episodes = [
            Whole(
                Episode(
                    steps={**one.steps, ("instruction",): TextStates.from_texts([word] * len(one))}, states=one.states
                )
            )
            for one, word in zip(EPISODES, words, strict=True)
        ]
        return write_dataset(tmp_path / name, episodes, columns(column)).folder

    words = ["push", "pull", "push", "lift", "pull", "push", "lift", "drop"]
    folder = stored("a", words)
    assert diff(folder, stored("b", words)).equal
    one = field_of(diff(folder, stored("c", ["lift", *words[1:]])), "instruction")
    assert (one.steps, one.episodes) == (20, (0,))
    assert one.first is not None
    assert (one.first.before, one.first.after) == ("push", "lift")
    assert one.greatest is None


def test_shortened_episodes_of_one_source_are_paired_and_compared_as_far_as_they_go(tmp_path):
    before = write_dataset(tmp_path / "a", EPISODES).folder
    last = (np.arange(15) == 14)[:, None]
    short = [
        Trajectory(
            {key: last & values[-1] if values.dtype == bool else values[:15] for key, values in one.steps.items()},
            {key: values[:16] for key, values in one.states.items()},
        )
        for one in EPISODES[:2]
    ]
    found = diff(before, write_dataset(tmp_path / "b", [*short, *EPISODES[2:]]).folder)
    assert found.shortened == ((0, 0, 20, 15), (1, 1, 21, 15))
    assert field_of(found, "action").equal
    assert {one.name for one in found.different_fields} <= {
        "next.terminated",
        "next.truncated",
        "episode table: return",
    }
    assert not found.equal


def test_parts_of_episodes_are_paired_by_the_number_of_the_episode_at_the_source(tmp_path):
    """Parts of an episode have one number: two of number 0, and one of number 1."""
    folders = [
        write_dataset(
            tmp_path / name,
            [trajectory(steps, seed=seed, source=source) for steps, source in zip(lengths, (0, 0, 1), strict=True)],
        ).folder
        for name, seed, lengths in (("a", 1, (20, 30, 40)), ("b", 2, (21, 31, 41)))
    ]
    assert diff(*folders).pairs == ((0, 0), (1, 1), (2, 2))


# What is compared: versions, derived datasets, raw files.


@pytest.fixture
def home(tmp_path):
    chosen = Settings(home=tmp_path / "home", progress=False, jobs=1)
    download("demo/pendulum", settings=chosen)
    return chosen


def test_versions_are_compared_by_their_numbers_and_names(home):
    folder = home.home / "demo/pendulum"
    preprocess(folder, Recipe.inline(["normalize"]), in_place=True, settings=home)
    names = sorted(path.name for path in folder.iterdir() if path.name[:4].isdigit())
    for first, second in (("0001", "0002"), ("1", "2"), names):
        found = diff(f"demo/pendulum:{first}", f"demo/pendulum:{second}", settings=home)
        assert (found.before.version, found.after.version) == tuple(names)
        assert [one.name for one in found.different_fields] == ["observation"]
        assert len(found.pairs) == 75
        assert set(found.statistics) == {"observation"}
    assert diff("demo/pendulum:0002", "demo/pendulum", settings=home).equal
    assert diff("demo/pendulum:0001", "demo/pendulum:0001", settings=home).equal
    with pytest.raises(InvalidArgumentError, match="has no version 7, expected one of 0001-"):
        diff("demo/pendulum:7", "demo/pendulum", settings=home)


def test_a_folder_without_versions_has_no_version_of_a_number(before):
    with pytest.raises(InvalidArgumentError, match="has no version 1: the folder is a single version"):
        diff(f"{before}:1", before)


def test_a_damaged_dataset_is_an_error_and_no_difference(tmp_path, before):
    other = write_dataset(tmp_path / "b", EPISODES).folder
    with (other / "rows.npy").open("r+b") as file:
        file.truncate(6_000)
    with pytest.raises(IntegrityError, match=r"rows\.npy"):
        diff(before, other)


def test_raw_files_are_compared_without_being_stored(tmp_path, home):
    with_states = write_dataset(tmp_path / "stored", EPISODES)
    out = export_stored(with_states, "hdf5", tmp_path / "exported")
    stored = {*home.home.rglob("*")}

    found = diff(with_states.folder, out, settings=home)
    assert len(found.pairs) == 8
    assert not found.different_fields
    assert not found.only_before
    assert not found.only_after
    assert {*home.home.rglob("*")} == stored


def test_what_is_not_stored_is_named(home):
    with pytest.raises(NotADatasetError, match="it is not downloaded"):
        diff("demo/pendulum", "d4rl/hopper-medium-v2", settings=home)


def test_the_difference_is_plain_data(tmp_path, before):
    episodes = [changed(EPISODES[0], ("action",), 5, 1, 7.5), *EPISODES[1:]]
    document = json.loads(json.dumps(diff(before, write_dataset(tmp_path / "after", episodes).folder).to_json()))
    assert document["equal"] is False
    (action,) = (one for one in document["fields"] if one["first"])
    assert (action["name"], action["episodes"], action["first"]["after"]) == ("action", [0], 7.5)


def test_values_that_json_does_not_have_are_texts(tmp_path):
    folders = [
        write_dataset(tmp_path / str(number), [changed(EPISODES[0], ("action",), 3, 1, value)]).folder
        for number, value in enumerate((np.nan, -np.inf))
    ]
    document = json.loads(json.dumps(diff(*folders).to_json(), allow_nan=False))
    (first,) = (one["first"] for one in document["fields"] if one["first"])
    assert (first["before"], first["after"]) == ("nan", "-inf")


@pytest.fixture(scope="module")
def six_episodes(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("six") / "a", EPISODES[:6], id="toy/a").folder


@given(
    order=st.permutations(range(6)),
    kept=st.sets(st.integers(0, 5), min_size=1),
    touched=st.sets(st.integers(0, 5)),
)
@hypothesis_settings(max_examples=15)
def test_any_selection_order_and_change_is_told_apart(tmp_path_factory, six_episodes, order, kept, touched):
    """The plain model: which episodes stay, in which order, and of which episodes an action was changed."""
    folder = tmp_path_factory.mktemp("diff")
    chosen = [number for number in order if number in kept]
    after = write_dataset(
        folder / "b",
        [changed(EPISODES[one], ("action",), one, 0, 9.0) if one in touched else EPISODES[one] for one in chosen],
        id="toy/b",
    ).folder

    found = diff(six_episodes, after)
    assert dict(found.pairs) == {number: chosen.index(number) for number in sorted(kept)}
    assert set(found.only_before) == {*range(6)} - kept
    assert not found.only_after
    assert field_of(found, "action").steps == len(touched & kept)
    assert field_of(found, "observation").equal
    assert bool(found.moved) == (chosen != sorted(chosen))
