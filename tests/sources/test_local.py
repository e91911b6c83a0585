"""User files: detected layouts, the description in dataset.toml, and its errors."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from oracles import comparison
from pyarrow import parquet
from raw import local as folders

import datasets_rl
from datasets_rl import LocalExperienceReplay, Selection, downloading, verification
from datasets_rl.errors import ConversionError, InvalidArgumentError, UnknownIdError
from datasets_rl.fetch.partial_download import digest_file
from datasets_rl.format.reader import StoredDataset
from datasets_rl.preprocessing import Recipe, preprocess
from datasets_rl.read.toml import parse_toml
from datasets_rl.settings import Settings
from datasets_rl.sources import find, local
from datasets_rl.sources.local.description import Description

PAGE = Path(datasets_rl.__file__).parents[1] / "docs" / "sources" / "local.md"


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "mine"
    place.mkdir()
    return place


@pytest.fixture
def convert(folder, tmp_path):
    """A function that writes a description of the files in the folder, and converts them."""

    def run(text="", home="home", jobs=1, **options):
        if text is not None:
            (folder / "dataset.toml").write_text(text)
        settings = Settings(home=tmp_path / home, progress=False, jobs=jobs)
        made = downloading.download("local/mine", from_local=folder, settings=settings, **options)
        assert comparison.deep_problems(made, settings=settings) == []
        return StoredDataset(made)

    return run


def one(steps=4, more=0, **others):
    """Return the arrays of an episode with consecutive numbers, so that any shift is detected."""
    plain = {
        "obs": np.arange(steps + more, dtype=np.float32)[:, None],
        "action": 10 + np.arange(steps),
        "reward": 100.0 + np.arange(steps),
    }
    return {name: values for name, values in {**plain, **others}.items() if values is not None}


def rules(stored):
    return {decision.rule: decision.count for decision in stored.manifest.decisions}


def test_changed_user_files_are_not_mistaken_for_the_stored_ones(folder, convert):
    np.savez(folder / "a.npz", **one(more=1))
    np.savez(folder / "b.npz", **one(2, more=1))
    text = convert().folder.joinpath("manifest.json").read_text()
    assert convert(text=None).folder.joinpath("manifest.json").read_text() == text

    np.savez(folder / "a.npz", **one(5, more=1))
    np.savez(folder / "c.npz", **one(3, more=1))
    with pytest.raises(
        InvalidArgumentError,
        match=r"converted from other files: mine/a\.npz has \S+ bytes, and had \S+, mine/c\.npz is new\n",
    ):
        convert(text=None)
    assert convert(text=None, force=True).manifest.steps == 10

    other = one(5, more=1)
    other["reward"][2] = -1
    np.savez(folder / "a.npz", **other)
    with pytest.raises(InvalidArgumentError, match=r"mine/a\.npz has other bytes\n"):
        convert(text=None)


def test_one_more_observation_than_actions_is_the_final_observation(folder, convert):
    np.savez(folder / "a.npz", **one(more=1))
    np.savez(folder / "b.npz", **one(2, more=1))

    stored = convert()
    assert stored.column(("observation",))[:, 0].tolist() == [0, 1, 2, 3, 0, 1]
    assert stored.column(("next", "observation"))[:, 0].tolist() == [1, 2, 3, 4, 1, 2]
    assert stored.column(("next", "truncated"))[:, 0].tolist() == [False] * 3 + [True, False, True]
    assert rules(stored) == {
        "one-more": 6,
        "no-terminated": 2,
        "end-without-flag": 2,
        "final-observation-kept": 2,
        "by-file": 2,
    }


def test_observations_of_agents_tell_whether_the_final_one_is_known(folder, convert):
    text = '[fields]\n"agents"."observation" = { array = "seen", state = true }\n'
    for more in (0, 1):
        np.savez(folder / "a.npz", **one(obs=None, seen=np.ones((4 + more, 2, 3), np.float32)))

        stored = convert(text, home=str(more))

        assert stored.episodes["final_known"].tolist() == [bool(more)]
        assert rules(stored)[f"final-observation-{'kept' if more else 'unknown'}"] == 1


def test_as_many_observations_as_actions_leave_the_final_one_unknown(folder, convert):
    np.savez(folder / "a.npz", **one())

    stored = convert()
    assert stored.column(("next", "observation"))[:, 0].tolist() == [1, 2, 3, 0]
    assert stored.episodes["final_known"].tolist() == [False]


def test_rows_with_the_preceding_action_are_shifted(folder, convert):
    np.savez(folder / "a.npz", **one(5, terminal=np.arange(5) == 4))

    stored = convert('alignment = "action-before"')
    assert stored.column(("observation",))[:, 0].tolist() == [0, 1, 2, 3]
    assert stored.column(("next", "observation"))[:, 0].tolist() == [1, 2, 3, 4]
    assert stored.column(("action",)).tolist() == [11, 12, 13, 14]
    assert stored.column(("next", "reward"))[:, 0].tolist() == [101, 102, 103, 104]
    assert stored.column(("next", "terminated"))[:, 0].tolist() == [False, False, False, True]


def test_a_last_row_without_a_step_gives_only_its_observation(folder, convert):
    parquet.write_table(
        pa.table({name: values.reshape(5) for name, values in one(5).items()} | {"episode_index": [7, 7, 7, 9, 9]}),
        folder / "a.parquet",
    )

    stored = convert('alignment = "one-more"')
    assert stored.column(("observation",)).tolist() == [[0], [1], [3]]
    assert stored.column(("next", "observation")).tolist() == [[1], [2], [4]]
    assert stored.column(("action",)).reshape(-1).tolist() == [10, 11, 13]
    assert stored.episodes["source"].tolist() == [7, 9]


@pytest.mark.parametrize(("by", "array"), [("lengths", [1, 3]), ("ends", [1, 4]), ("column", [5, 6, 6, 6])], ids=str)
def test_an_array_marks_the_episodes(folder, convert, by, array):
    np.savez(folder / "a.npz", **one(marks=np.array(array)))

    stored = convert(f'[episodes]\nby = "{by}"\narray = "marks"')
    assert stored.episodes.lengths.tolist() == [1, 3]
    assert stored.column(("next", "done"))[:, 0].tolist() == [True, False, False, True]


def test_ends_of_unknown_type_are_terminations_and_counted(folder, convert):
    np.savez(folder / "a.npz", **one(dones=[0, 1, 0, 0]))

    stored = convert()
    assert stored.column(("next", "terminated"))[:, 0].tolist() == [False, True, False, False]
    assert stored.column(("next", "truncated"))[:, 0].tolist() == [False, False, False, True]
    assert rules(stored)["done-as-terminated"] == 1


def test_names_in_groups_and_names_with_dots_are_nested(folder, convert):
    with h5py.File(folder / "a.h5", "w") as file:
        for name, values in one().items():
            file["obs/joints" if name == "obs" else name] = values
        file["obs/force"] = np.ones((4, 2), np.float32)
        file["infos/qpos"] = np.ones(4)

    assert {field.name for field in convert().schema} > {"observation.joints", "observation.force", "info.qpos"}


def test_fields_that_are_left_out_are_reported(folder, convert):
    np.savez(folder / "a.npz", **one(stamp=np.arange(4), joint=np.arange(3)))

    (said,) = [one for one in convert().manifest.decisions if one.rule == "left-out"]
    assert said.text.endswith(": joint, stamp")


def test_images_are_transposed_with_their_bounds(folder, convert):
    frames = np.random.default_rng(0).integers(0, 200, (4, 5, 6, 3)).astype(np.uint8)
    np.savez(folder / "a.npz", **one(frames=frames, obs=None))

    text = '[fields]\nobservation = { array = "frames", layout = "HWC to CHW", low = 0, high = [200, 210, 220] }'
    stored = convert(text)
    assert np.array_equal(stored.column(("observation",)), frames.transpose(0, 3, 1, 2))
    assert np.shape(stored.manifest.specs["observation"]["high"]) == (3, 5, 6)
    assert np.array(stored.manifest.specs["observation"]["high"])[:, 0, 0].tolist() == [200, 210, 220]


def test_bounds_and_choices_become_specs(folder, convert):
    np.savez(folder / "a.npz", **one())

    stored = convert('[fields]\naction = { array = "action", n = 14 }')
    assert stored.manifest.specs["action"] == {"kind": "discrete", "dtype": "int64", "shape": [], "n": 14}


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        (
            'reward = { array = "reward", low = 0.0, high = 101.5 }',
            r"next.reward\[0\] is 102.0 at row 2, but .* 0.0 to 101.5 \(2 ",
        ),
        ('action = { array = "action", n = 13 }', r"action is 13 at row 3, but .* states 0 to 12 \(1 such values\)"),
        ('flag = { array = "count", binary = true }', r"flag is 10 at row 0, but .* states 0 to 1 \(4 such values\)"),
        (
            'observation = { array = "wide", low = 0.0, high = [1.0, 2.0] }',
            r"observation\[1\] is 3.0 at row 1, but .* states 0.0 to 2.0 \(1 such",
        ),
    ],
)
def test_values_outside_of_the_described_bounds_are_refused(folder, convert, field, problem):
    np.savez(
        folder / "a.npz",
        **one(count=10 + np.arange(4), wide=np.array([[0, 2], [1, 3], [np.nan, np.inf], [1, 1]], np.float32)),
    )

    with pytest.raises(ConversionError, match=problem) as caught:
        convert(f"[fields]\n{field}")
    assert "correct the bounds in dataset.toml" in caught.value.hint


def test_unsigned_integers_are_widened_and_byte_orders_converted(folder, convert):
    np.savez(folder / "a.npz", **one(action=np.full(4, 65_535, np.uint16), reward=np.arange(4, dtype=">f4")))

    stored = convert()
    assert stored.column(("action",)).dtype == np.int32
    assert stored.column(("action",)).tolist() == [65_535] * 4
    assert stored.column(("next", "reward")).dtype == np.dtype("=f4")


@pytest.mark.parametrize("case", folders.CASES, ids=("npz", "hdf5", "parquet", "action-before"))
def test_the_result_does_not_depend_on_the_size_of_reads(case, tmp_path, monkeypatch):
    (tmp_path / "tree").mkdir()
    case.write(tmp_path / "tree")

    def digests(home):
        settings = Settings(home=tmp_path / home, progress=False)
        made = downloading.download(case.id, from_local=tmp_path / "tree", settings=settings)
        # The last bit of a return depends on the order of summation.
        return {
            path.name: digest_file(path).hexdigest()
            for path in made.glob("*.npy")
            if path.name not in {"episodes.npy", "digests.npy"}
        }

    whole = digests("whole")
    monkeypatch.setattr("datasets_rl.sources.rows._CHUNK_BYTES", 100)
    assert digests("pieces") == whole


def test_a_folder_without_a_description_is_an_error_with_a_valid_one(folder, convert):
    with h5py.File(folder / "a.h5", "w") as file:
        for name, values in one(terminals=np.arange(4) == 1, next_obs=np.arange(1, 5, dtype="f4")[:, None]).items():
            file[name] = values
        file["extra"] = np.zeros(4)

    with pytest.raises(ConversionError, match=r"it has no dataset\.toml") as caught:
        convert(None)
    text = caught.value.hint.partition("\n\n")[2]
    assert '# ... = "extra"    # float64 [4]' in text

    stored = convert(text)
    assert stored.episodes.lengths.tolist() == [2, 2]
    assert stored.episodes["final_known"].all()


@pytest.mark.parametrize("text", ["", None], ids=["an empty one", "none"])
def test_without_a_description_usual_names_are_read_as_with_an_empty_one(folder, convert, text):
    with h5py.File(folder / "a.h5", "w") as file:
        for name, values in one(terminals=np.arange(4) == 1).items():
            file[name] = values

    assert convert(text).episodes.lengths.tolist() == [2, 2]


def test_arrays_with_unknown_names_must_be_described(folder, convert):
    np.savez(folder / "a.npz", x=np.zeros((3, 2)), u=np.zeros(3))

    with pytest.raises(ConversionError) as caught:
        convert(None)
    for text in ("which array is the observation?", "which array is the action?", '# ... = "x"    # float64 [3, 2]'):
        assert text in caught.value.hint
    with pytest.raises(ConversionError, match="no array is described or named as observation") as caught:
        convert()
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("names", "text", "problem", "remedy"),
    [
        ([], "", "there is no file beside dataset.toml", "add files of HDF5, npz, Parquet"),
        (["a.npz"], 'files = ["b*.npz"]', "none of 1 files matches b*.npz", "set format = ... and files = ..."),
        (["a.npz"], "", "no array is described or named as action", "correct the files, or the description"),
    ],
)
def test_an_error_about_the_files_says_what_to_change(folder, convert, names, text, problem, remedy):
    for name in names:
        np.savez(folder / name, **one(action=None))

    with pytest.raises(ConversionError) as caught:
        convert(text)
    assert problem in str(caught.value)
    assert remedy in caught.value.hint


def test_all_errors_of_a_description_are_reported_at_once():
    document = {
        "nam": "x",
        "format": "hdf",
        "license": 5,
        "files": [1],
        "alignment": "odd",
        "episodes": {"by": "mood", "arrays": "x"},
        "fields": {"a": 5, "b": {"array": "b", "n": 0, "layout": "HW"}, "c": {"array": "c", "low": "x", "high": 1}},
    }

    with pytest.raises(ConversionError) as caught:
        Description.read(document, "local/x")
    wrong = (
        "nam",
        "format",
        "license",
        "files",
        "alignment",
        "arrays",
        "mood",
        "fields.a",
        "b.n",
        "b.layout",
        "c: low",
    )
    assert all(any(word in problem for problem in caught.value.problems) for word in wrong)


def test_the_description_in_the_documentation_can_be_read():
    section = PAGE.read_text(encoding="utf-8").partition("\n## All keys of dataset.toml")[2]
    (text,) = re.findall(r"```toml\n(.*?)```", section, flags=re.DOTALL)
    said = Description.read(parse_toml(text), "local/arm")
    assert (said.by, said.marks, said.alignment) == ("column", "episode_index", "one-more")
    assert (said.table, said.final_known) == ("episodes.parquet", "episodes/final_known")
    assert said.final.format("joints") == "episodes/final.joints"
    assert {".".join(field.key) for field in said.fields} == {
        "observation.joints",
        "observation.camera",
        "observation.pose",
        "action",
        "contact",
        "goal",
        "pixels",
        "next.reward",
        "next.truncated",
    }


def test_files_that_are_episodes_can_be_selected(folder, convert):
    for number in (10, 9, 2):
        np.savez(folder / f"{number}.npz", **one(number))

    stored = convert('[episodes]\nby = "file"', selection=Selection(episodes="1:"))
    assert stored.episodes.lengths.tolist() == [9, 10]
    assert stored.episodes["source"].tolist() == [1, 2]
    assert convert("", home="by default", selection=Selection(episodes="1:")).episodes.lengths.tolist() == [9, 10]
    np.savez(folder / "2.npz", **one(2, dones=[0, 1]))
    for text in ("", '[episodes]\nby = "flags"'):
        with pytest.raises(
            InvalidArgumentError,
            match="can be selected by number only if each file is one episode, but here flags mark",
        ):
            convert(text, home=f"other{len(text)}", selection=Selection(episodes="0:1"))


def test_episodes_that_each_file_counts_from_0_are_selected_and_split_one_by_one(folder, convert, tmp_path):
    for number in range(10):
        steps = number + 1
        np.savez(folder / f"{number}.npz", **one(steps, terminated=np.arange(steps) == number))
    stored = convert()
    assert stored.episodes["source"].tolist() == [0] * 10
    assert stored.episodes.numbers.tolist() == [*range(10)]

    shown = LocalExperienceReplay("mine", root=tmp_path / "home" / "local", selection=Selection(episodes="2:4"))
    parts = {part: Recipe.inline([f"split:{part},0.3"]) for part in ("train", "validation")}
    lengths = [
        StoredDataset(preprocess(stored.folder, recipe, out=tmp_path / part)).episodes.lengths.tolist()
        for part, recipe in parts.items()
    ]

    assert len(shown) == 3 + 4
    assert len(lengths[1]) == 3
    assert sorted(lengths[0] + lengths[1]) == [*range(1, 11)]


def test_the_class_needs_the_folder_only_for_the_download(folder, tmp_path):
    np.savez(folder / "a.npz", **one())
    (folder / "dataset.toml").write_text("")

    with pytest.raises(UnknownIdError, match="no dataset 'local/mine' among the stored datasets"):
        LocalExperienceReplay("mine", root=tmp_path / "root")
    assert len(LocalExperienceReplay("mine", 2, folder=folder, root=tmp_path / "root").sample()) == 2
    assert len(LocalExperienceReplay("mine", root=tmp_path / "root")) == 4


@pytest.mark.parametrize("name", ["../up", "a//b", "", "a b", ".hidden", "a/../b"])
def test_names_outside_of_the_folder_are_invalid(name):
    with pytest.raises(UnknownIdError):
        local.SOURCE.entry(name)


@pytest.mark.parametrize("source", ["local", "minari", "d4rl"])
def test_an_id_that_is_too_long_for_a_folder_is_invalid(source):
    with pytest.raises(UnknownIdError, match="ids of at most 200 bytes"):
        find(f"{source}/{'k' * 300}-v0")


def test_any_other_name_is_an_id():
    assert find("local/lab/gripper-2.1").id == "local/lab/gripper-2.1"


def test_next_observations_may_differ_from_the_next_row_by_rounding(folder, convert):
    state = np.linspace(0, 9, 40, dtype=np.float32)[:, None]
    after = np.roll(state, -1, axis=0)
    after[-1] = 7
    after[3:30] += np.float32(1e-6)
    np.savez(folder / "a.npz", **one(40, obs=state, next_obs=after))

    stored = convert()
    assert stored.episodes.lengths.tolist() == [40]
    assert stored.column(("next", "observation"))[:, 0].tolist() == [*state[1:, 0].tolist(), 7]
    assert rules(stored)["next-observation-rounded"] == int((after[:-1] != state[1:]).sum())

    after[20] += np.float32(1e-3)
    np.savez(folder / "a.npz", **one(40, obs=state, next_obs=after))
    with pytest.raises(ConversionError, match=r"next_obs of row 20 is not obs of row 21 \(the only such row\)"):
        convert(home="other")


NO_STEP = {"action": np.array([]), "reward": np.array([])}


@pytest.mark.parametrize("empty", [["a"], ["b"], ["a", "c"]], ids=str)
@pytest.mark.parametrize("states", [0, 1])
def test_files_without_a_step_are_left_out_and_counted(folder, convert, empty, states):
    for name, steps in {"a": 4, "b": 2, "c": 3}.items():
        made = {"obs": np.zeros((states, 1), np.float32), **NO_STEP} if name in empty else one(steps, more=1)
        np.savez(folder / f"{name}.npz", **made)

    stored = convert()
    kept = [number for number, name in enumerate("abc") if name not in empty]
    assert stored.episodes["source"].tolist() == kept
    assert stored.episodes.lengths.tolist() == [(4, 2, 3)[number] for number in kept]
    assert rules(stored)["no-transition"] == len(empty)


def test_an_empty_table_is_left_out_and_counted(folder, convert):
    table = pa.table({name: values.reshape(4) for name, values in one().items()})
    for name, rows in {"a": table.slice(0, 0), "b": table}.items():
        parquet.write_table(rows, folder / f"{name}.parquet")

    assert rules(convert())["no-transition"] == 1


@pytest.mark.parametrize("by", ["lengths", "ends"])
@pytest.mark.parametrize("more", [0, 1])
def test_episodes_of_no_step_within_a_file_are_left_out_and_counted(folder, convert, by, more):
    """With an observation more than steps, each of them has a single observation. The others keep their numbers."""
    lengths = np.array([0, 2, 0, 0, 3, 0])
    arrays = one(5, obs=np.arange(5 + 6 * more, dtype=np.float32)[:, None])
    np.savez(folder / "a.npz", **arrays, marks=lengths if by == "lengths" else np.cumsum(lengths))

    stored = convert(f'[episodes]\nby = "{by}"\narray = "marks"')
    assert stored.episodes.lengths.tolist() == [2, 3]
    assert stored.episodes["source"].tolist() == [1, 4]
    assert stored.column(("observation",))[:, 0].tolist() == ([1, 2, 6, 7, 8] if more else [0, 1, 2, 3, 4])
    assert stored.column(("action",)).tolist() == [10, 11, 12, 13, 14]
    assert rules(stored)["no-transition"] == 4


@pytest.mark.parametrize("alignment", ["one-more", "action-before"])
def test_episodes_of_one_row_without_a_step_are_left_out_and_counted(folder, convert, alignment):
    np.savez(folder / "a.npz", **one(6), episode_index=np.array([3, 4, 4, 4, 5, 5]))

    stored = convert(f'alignment = "{alignment}"')
    assert stored.episodes["source"].tolist() == [4, 5]
    assert stored.column(("observation",))[:, 0].tolist() == [1, 2, 4]
    assert rules(stored)["no-transition"] == 1


def test_only_empty_files_are_an_error(folder, convert):
    np.savez(folder / "a.npz", obs=np.zeros((1, 1), np.float32), **NO_STEP)

    with pytest.raises(ConversionError, match=r"none of 1 files has a step: a\.npz"):
        convert()


def flipped(path, at):
    """Flip a bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed], ids=["stored", "deflated"])
@pytest.mark.parametrize("alignment", ["same-row", "one-more", "action-before"])
def test_a_flipped_bit_in_any_array_of_an_npz_is_an_error(folder, convert, write, alignment):
    place = folder / "a.npz"
    write(place, **one(40, obs=np.arange(40, dtype=np.float32)[:, None]))
    with zipfile.ZipFile(place) as archive:
        members = archive.infolist()

    for member in members:
        end = member.header_offset + 30 + len(member.filename) + 20 + member.compress_size
        flipped(place, end - 2)
        with pytest.raises(ConversionError, match=r"checksum is wrong|gzip stream") as caught:
            convert(f'alignment = "{alignment}"\n[episodes]\nby = "file"', home=member.filename)
        assert member.filename in str(caught.value)
        flipped(place, end - 2)


def test_verify_reports_a_raw_npz_that_was_damaged_after_the_conversion(folder, convert, tmp_path):
    np.savez(folder / "a.npz", **one(40))
    made = convert().folder
    flipped(folder / "a.npz", 300)

    found = verification.verify(made, deep=True, settings=Settings(home=tmp_path / "home", progress=False))
    assert any("a.npz" in problem and "sha256" in problem for problem in found.problems)


def test_scores_and_the_environment_are_stored(folder, convert):
    np.savez(folder / "a.npz", **one(more=1))
    made = convert('environment = "Gripper-v1"\n[score]\nlow = -10\nhigh = 30')

    assert made.manifest.score == {"low": -10.0, "high": 30.0, "origin": "dataset.toml"}
    assert made.manifest.metadata["environment"] == "Gripper-v1"


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("low = 1", "score.low and score.high are 1 and None, expected two numbers"),
        ("low = 3\nhigh = 1", "score.low is 3 and score.high is 1, expected a low one below a high one"),
        ("low = [1]\nhigh = [2]", "expected two numbers"),
        ("low = 0\nhigh = 1\nhihg = 2", "score.hihg is unknown, expected one of high"),
        ("low = 0\nhigh = 1\norigin = 3", "score.origin is 3, expected a string"),
    ],
)
def test_an_invalid_score_is_an_error(folder, convert, table, problem):
    np.savez(folder / "a.npz", **one(more=1))

    with pytest.raises(ConversionError, match=re.escape(problem)):
        convert(f"[score]\n{table}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[episodes]\nfinal = "last"', "episodes.final is 'last', expected a name with {}"),
        ('[episodes]\nfinal_known = "known"', "episodes has final_known, expected also episodes.final"),
        ("[episodes]\ntable = 3", "episodes.table is 3, expected a string"),
        ('[fields]\nobs = { array = "obs", state = 1.5 }', "fields.obs.state is 1.5, expected true or false"),
        ('[fields]\nnext.info = "info"', "fields.next.info is not allowed"),
        ('[episodes]\nby = "file"\nfinal = "last/{}"', "it has no array last/obs, of the states after the last steps"),
        ('[episodes]\ntable = "none.parquet"', "episodes.table is none.parquet, which is not in the folder"),
    ],
)
def test_a_wrong_description_of_final_states_is_refused(folder, convert, text, problem):
    np.savez(folder / "1.npz", **one())

    with pytest.raises(ConversionError, match=re.escape(problem)):
        convert(text)


def test_final_states_of_their_own_arrays_are_kept_where_they_are_known(folder, convert):
    last = np.array([[50.0], [60.0]], np.float32)
    arrays = {**one(5, done=[0, 1, 0, 0, 1]), "last/obs": last, "known": np.array([True, False])}
    np.savez(folder / "1.npz", **arrays)

    stored = convert('[episodes]\nby = "flags"\nfinal = "last/{}"\nfinal_known = "known"')

    assert stored.episodes["final_known"].tolist() == [True, False]
    assert stored.column(("next", "observation"))[:, 0].tolist() == [1, 50, 3, 4, 0]


def test_final_states_of_another_number_of_episodes_are_refused(folder, convert):
    np.savez(folder / "1.npz", **one(5, done=[0, 1, 0, 0, 1]), **{"last/obs": np.zeros((3, 1), np.float32)})

    with pytest.raises(ConversionError, match="last/obs has 3 rows, for 2 episodes"):
        convert('[episodes]\nby = "flags"\nfinal = "last/{}"')


def test_a_field_may_be_a_state_under_any_key(folder, convert):
    np.savez(folder / "1.npz", frames=np.arange(5)[:, None], action=np.arange(4), reward=np.arange(4.0))

    stored = convert('[fields]\npixels = { array = "frames", state = true }')

    assert stored.column(("next", "pixels"))[:, 0].tolist() == [1, 2, 3, 4]
