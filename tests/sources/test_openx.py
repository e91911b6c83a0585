"""Open X-Embodiment: two upstreams, arbitrary features, and a last step without an action."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from oracles import comparison
from raw import openx as raw
from raw.images import encoded, scene
from servers import Status
from upstreams import bucket, hub

from datasets_rl import OpenXExperienceReplay, Selection, downloading, verify
from datasets_rl.downloading import planning
from datasets_rl.errors import ConversionError, FetchError, InvalidArgumentError, UnknownIdError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources import find, openx
from datasets_rl.sources.openx.reader import OpenXReader

RECORDS, ARCHIVES = f"openx/{raw.NAME}", f"openx/{raw.HUB}"


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(openx, "_SHARD_BYTES", 10_000)
    return Settings(home=tmp_path / "home", progress=False, retries=0, jobs=1)


@pytest.fixture
def convert(tmp_path, settings):
    """A function that converts the files in ``tmp_path / "tree"``."""

    def run(name=RECORDS, *, episodes="", keys=(), **options):
        part = Selection(episodes=episodes, keys=keys, options={key.replace("_", "-"): v for key, v in options.items()})
        tree = tmp_path / "tree"
        return StoredDataset(downloading.download(name, from_local=tree, settings=settings, selection=part, force=True))

    return run


def decided(stored):
    return {one.rule: one.count for one in stored.manifest.decisions}


def test_the_catalog_has_the_ids_of_torchrl_and_some_of_the_buckets():
    known = [find(f"openx/{name}") for name in openx.SOURCE.ids()]

    assert sum(entry.params.get("hub", False) for entry in known) == 55
    assert len(known) == 63
    assert set(OpenXExperienceReplay.available_datasets) == {entry.name for entry in known}
    assert find("openx/kuka").title == "580,392 episodes of a robot"
    assert find("openx/droid").params["version"] == "1.0.1"


def test_listing_them_does_not_import_numpy():
    script = (
        "import sys; from datasets_rl import sources; s = sources.get_source('openx'); [s.entry(n) for n in s.ids()]; "
    )
    script += "print({'numpy', 'torch', 'httpx'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "set()\n"
    )


def test_an_invalid_id_is_refused_and_an_unknown_one_is_requested(tmp_path, settings):
    with pytest.raises(UnknownIdError):
        find("openx/../etc")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FetchError) as caught:
        downloading.download("openx/cmu_strech", from_local=tmp_path / "empty", settings=settings)
    assert "openx/cmu_stretch" in caught.value.hint


@pytest.fixture
def both(tmp_path, monkeypatch):
    """Servers of three versions of the records, and of the mirror."""
    for version in ("0.2.0", "0.10.0", "0.9.1"):
        raw.write_records(tmp_path / "bucket" / "robotics", [raw.EPISODES[: len(version)]], version=version)
    raw.write_archives(tmp_path / "hub", [raw.EPISODES[:3], raw.EPISODES[3:]], name=raw.NAME)
    with bucket({"gresearch": tmp_path / "bucket"}) as records, hub({raw.REPO: tmp_path / "hub"}) as mirror:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", records.url)
        monkeypatch.setenv("HF_ENDPOINT", mirror.url)
        yield records, mirror


def test_the_newest_version_of_the_records_is_used(both, settings):
    stored = StoredDataset(downloading.download(RECORDS, settings=settings))

    assert stored.manifest.revision == "0.10.0"
    assert len(stored.episodes) == 5
    assert stored.manifest.metadata["version"] == "0.10.0"
    assert stored.manifest.citation == "@misc{example, title={A drawn robot}}"
    assert both[1].requests == []


def test_a_folder_without_a_version_is_older_than_any_version(tmp_path, convert):
    for version in ("0.1.0", "1.²"):
        raw.write_records(tmp_path / "tree", raw.FILES, version=version)

    assert convert().manifest.metadata["version"] == "0.1.0"


@pytest.mark.usefixtures("both")
def test_the_mirror_is_used_on_request_or_where_the_buckets_do_not_respond(tmp_path, settings):
    said = StoredDataset(
        downloading.download(RECORDS, settings=settings, selection=Selection(options={"upstream": "hub"}))
    )
    shutil.rmtree(tmp_path / "bucket")
    fallen = StoredDataset(downloading.download(RECORDS, settings=settings, force=True))

    for stored in (said, fallen):
        assert stored.manifest.metadata["upstream"] == "hub"
        assert len(stored.manifest.revision) == 40
        assert "types are those of Python" in stored.manifest.known_issues[0]
    with pytest.raises(FetchError):
        downloading.download(
            RECORDS, settings=settings, force=True, selection=Selection(options={"upstream": "rlds"}), wait=0
        )


def test_a_split_is_selected_by_its_name(tmp_path, convert):
    more = {"name": "val", "numBytes": "1", "shardLengths": ["1"]}
    raw.write_records(tmp_path / "tree", raw.FILES, more=[more])
    payload = raw.framed(raw.tfrecords.example(raw.flat(raw.EPISODES[3])))
    (tmp_path / "tree" / raw.NAME / raw.VERSION / f"{raw.NAME}-val.tfrecord-00000-of-00001").write_bytes(payload)

    assert convert(split="val").episodes.lengths.tolist() == [5]
    assert convert().episodes.lengths.tolist() == [4, 2, 2, 5, 3]
    with pytest.raises(InvalidArgumentError, match="split is 'test', but openx/cmu_stretch has train, val"):
        convert(split="test")


def test_the_mirror_has_one_split(tmp_path, convert):
    raw.write_archives(tmp_path / "tree", raw.FILES)

    with pytest.raises(InvalidArgumentError, match="the mirror has only train"):
        convert(ARCHIVES, split="val", upstream="hub")


# --- the last step


def one(tmp_path, **changes):
    """Write an episode of 5 steps with changed features."""
    raw.write_records(tmp_path / "tree", [[{**raw.flat(raw.draw(5, 1)), **changes}]])


def test_a_reward_at_the_last_step_is_left_out_and_counted(tmp_path, convert):
    one(tmp_path, **{"steps/reward": [0.0, 0.0, 0.0, 0.0, 1.0]})

    stored = convert()
    assert stored.column(("next", "reward"))[:, 0].tolist() == [0, 0, 0, 0]
    assert decided(stored)["reward-at-last-step"] == 1
    kept = convert(last_step="transition")
    assert kept.column(("next", "reward"))[:, 0].tolist() == [0, 0, 0, 0, 1]
    assert kept.episodes["final_known"].tolist() == [False]
    assert not kept.column(("next", "observation", "image"))[-1].any()
    assert decided(kept)["last-step-kept"] == 1
    assert "reward-at-last-step" not in decided(kept)


def test_flags_inside_a_record_end_nothing_and_are_counted(tmp_path, convert):
    one(tmp_path, **{"steps/is_last": [0, 1, 0, 0, 1], "steps/is_terminal": [0, 1, 1, 0, 0]})

    stored = convert()
    assert stored.episodes.lengths.tolist() == [4]
    assert stored.column(("next", "terminated")).sum() == 0
    assert stored.column(("next", "truncated"))[:, 0].tolist() == [False, False, False, True]
    assert decided(stored)["flag-inside-episode"] == 3


def test_an_episode_of_one_step_has_no_action_and_is_left_out(tmp_path, convert):
    raw.write_records(tmp_path / "tree", [[raw.draw(1, 0), raw.draw(3, 1), raw.draw(1, 2)]])

    stored = convert()
    assert stored.episodes["source"].tolist() == [1]
    assert decided(stored)["no-transition"] == 2
    assert comparison.deep_problems(stored.folder) == []


# --- features


def document(**steps):
    """Return a features.json with only these features of a step."""
    return raw.group(steps=raw.many_of(raw.group(**steps)))


FLAGS = {"is_first": raw.tensor("bool"), "is_last": raw.tensor("bool")}


def test_a_dataset_is_read_by_its_own_features(tmp_path, convert):
    """An action that is an array, images as byte strings, no reward, and names that TED reserves."""
    images = [encoded(scene(40, 40, 3, seed)) for seed in range(3)]
    features = {
        "steps/action": [float(value) for value in range(6)],
        "steps/done": [7, 8, 9],
        "steps/is_first": [1, 0, 0],
        "steps/is_last": [0, 0, 1],
        "steps/observation/wrist.cam": images,
        "steps/words": [b"a", b"b"] * 3,
    }
    observation = raw.group(**{"wrist.cam": raw.tensor("string")})
    made = document(
        action=raw.tensor("float32", 2),
        done=raw.tensor("uint8"),
        observation=observation,
        words=raw.tensor("string", 2),
        **FLAGS,
    )
    raw.write_records(tmp_path / "tree", [[features]], name="a_set_of_mine", document=made)

    stored = convert("openx/a_set_of_mine")

    assert comparison.deep_problems(stored.folder) == []
    assert stored.column(("action",)).tolist() == [[0, 1], [2, 3]]
    assert stored.column(("done_",)).tolist() == [7, 8]
    assert np.array_equal(stored.column(("next", "observation", "wrist_cam"))[1], scene(40, 40, 3, 2))
    assert decided(stored)["reward-missing"] == 1
    assert decided(stored)["left-out steps/words"] == 1
    assert stored.column(("next", "truncated"))[:, 0].tolist() == [False, True]


def test_episode_metadata_never_has_a_name_of_steps_or_of_the_table(tmp_path, convert):
    made = raw.group(
        length=raw.tensor("int64"),
        reward=raw.tensor("float32"),
        steps=raw.many_of(raw.group(observation=raw.tensor("int32"), text=raw.TEXT, **FLAGS)),
        text=raw.TEXT,
    )
    features = {
        "length": [7],
        "reward": [2.5],
        "steps/is_first": [1, 0, 0],
        "steps/is_last": [0, 0, 1],
        "steps/observation": [1, 2, 3],
        "steps/text": [b"a", b"b", b"c"],
        "text": [b"whole"],
    }
    raw.write_records(tmp_path / "tree", [[features]], document=made)

    stored = convert()

    assert comparison.deep_problems(stored.folder) == []
    assert [stored.texts(("text",))[code] for code in stored.column(("text",))] == ["a", "b"]
    assert [stored.texts(("text_",))[code] for code in stored.column(("text_",))] == ["whole"] * 2
    assert (stored.episodes["length_"].tolist(), stored.episodes["reward_"].tolist()) == ([7], [2.5])
    assert stored.episodes.lengths.tolist() == [2]
    assert stored.column(("next", "reward")).tolist() == [[0], [0]]


@pytest.mark.parametrize("first", [False, True])
def test_a_record_without_a_step_is_left_out_and_counted(tmp_path, convert, first):
    features = {"steps/observation": [1, 2], "steps/is_first": [1, 0], "steps/is_last": [0, 1]}
    empty = dict.fromkeys(features, ())
    made = document(observation=raw.tensor("int32"), **FLAGS)
    raw.write_records(tmp_path / "tree", [[empty, features] if first else [features, empty]], document=made)

    stored = convert()
    assert comparison.deep_problems(stored.folder) == []
    assert stored.episodes["source"].tolist() == [int(first)]
    assert decided(stored)["no-transition"] == 1


def test_unsigned_integers_stored_as_bytes_are_verified(tmp_path, convert):
    values = [np.array(pair, "<u2").tobytes() for pair in ([1, 2], [3, 65_535], [5, 6])]
    features = {"steps/observation": values, "steps/is_first": [1, 0, 0], "steps/is_last": [0, 0, 1]}
    made = document(observation=raw.tensor("uint16", 2, encoding="bytes"), **FLAGS)
    raw.write_records(tmp_path / "tree", [[features]], document=made)

    stored = convert()

    assert stored.column(("observation",)).tolist() == [[1, 2], [3, 65_535]]
    assert comparison.deep_problems(stored.folder) == []


@pytest.mark.parametrize("keys", ["action.close", "episode_metadata"])
def test_without_observations_the_remaining_fields_are_verified(tmp_path, convert, keys):
    """The third episode was truncated, and has as many rows as steps."""
    raw.write_records(tmp_path / "tree", raw.FILES)

    stored = convert(keys=(keys,))

    assert stored.episodes.lengths.tolist() == [4, 2, 2, 5, 3]
    assert comparison.deep_problems(stored.folder) == []


@pytest.mark.parametrize(("dtype", "stored_as"), [("uint16", "int32"), ("uint32", "int64"), ("uint64", "int64")])
def test_unsigned_integers_become_wider_ones(tmp_path, convert, dtype, stored_as):
    features = {"steps/observation": [1, 2, 65_535], "steps/is_first": [1, 0, 0], "steps/is_last": [0, 0, 1]}
    raw.write_records(tmp_path / "tree", [[features]], document=document(observation=raw.tensor(dtype), **FLAGS))

    column = convert().column(("next", "observation"))
    assert column.dtype == stored_as
    assert column.tolist() == [2, 65_535]


def test_integers_that_fit_no_signed_type_are_refused(tmp_path, convert):
    features = {"steps/observation": [1, -2], "steps/is_first": [1, 0], "steps/is_last": [0, 1]}
    raw.write_records(tmp_path / "tree", [[features]], document=document(observation=raw.tensor("uint64"), **FLAGS))

    with pytest.raises(ConversionError, match="observation has 18446744073709551614, expected int64"):
        convert()


@pytest.mark.parametrize("lacking", ["observation", "names"])
def test_fields_that_cannot_be_stored_are_refused_together(tmp_path, convert, lacking):
    features = {"steps/a.b": [1, 2], "steps/a_b": [1, 2], "steps/is_first": [1, 0], "steps/is_last": [0, 1]}
    made = {"a.b": raw.tensor("int32"), "a_b": raw.tensor("int32"), **FLAGS}
    if lacking == "observation":
        del features["steps/a.b"], made["a.b"]
    raw.write_records(tmp_path / "tree", [[features]], document=document(**made))

    with pytest.raises(ConversionError, match="no observation" if lacking == "observation" else "both map to the key"):
        convert()


def test_a_long_episode_is_read_in_pieces_that_give_the_same_dataset(tmp_path, convert, monkeypatch):
    raw.write_records(tmp_path / "tree", raw.FILES)
    whole = {path.name: path.read_bytes() for path in convert(images="raw").folder.glob("*.npy")}
    monkeypatch.setattr("datasets_rl.sources.rows._CHUNK_BYTES", 40_000)
    lengths = []
    pieces = OpenXReader._split
    monkeypatch.setattr(
        OpenXReader, "_split", lambda self, one: (lengths.append(len(p)) or p for p in pieces(self, one))
    )

    assert {path.name: path.read_bytes() for path in convert(images="raw").folder.glob("*.npy")} == whole
    assert max(lengths) < 5


@pytest.mark.parametrize("images", ["raw", "encoded"])
def test_a_damaged_image_of_a_long_episode_is_reported_with_its_step(tmp_path, convert, monkeypatch, images):
    monkeypatch.setattr("datasets_rl.sources.rows._CHUNK_BYTES", 1)
    broken = [*raw.EPISODES[0].images[:3], b"\xff\xd8\xff no image", raw.EPISODES[0].images[4]]
    raw.write_records(tmp_path / "tree", [[replace(raw.EPISODES[0], images=broken)]])

    with pytest.raises(ConversionError, match="image 3 "):
        convert(images=images)


@pytest.mark.parametrize("images", ["raw", "encoded"])
def test_fields_that_keys_exclude_are_not_read(tmp_path, convert, images):
    raw.write_records(tmp_path / "tree", raw.FILES)
    raw.with_value("steps/observation/image", 1, b"\xff\xd8\xff no image")(tmp_path / "tree")

    stored = convert(keys=("observation.state", "action"), images=images)

    assert [field.key for field in stored.schema if field.key[0] == "observation"] == [("observation", "state")]
    assert comparison.deep_problems(stored.folder) == []
    with pytest.raises(ConversionError, match=r"observation\.image"):
        convert(images=images)


def test_encoded_images_are_the_bytes_of_the_upstream(tmp_path, convert):
    raw.write_records(tmp_path / "tree", [raw.EPISODES[:1]])

    stored = convert(images="encoded")

    assert (stored.folder / "observation.image.npy").read_bytes().endswith(b"".join(raw.EPISODES[0].images[:-1]))
    # 16-bit depth and float32 pixels cannot be stored as encoded images.
    assert not stored.schema[("observation", "depth")].encoded
    assert np.array_equal(stored.column(("observation", "metres")), raw.EPISODES[0].metres[:-1])


# --- parts


@pytest.mark.parametrize("chosen", ["0,4", "1:4", "-1:", "::2"])
def test_only_the_record_files_of_the_selected_episodes_are_fetched(tmp_path, settings, chosen):
    raw.write_records(tmp_path / "gdm", raw.FILES)
    wanted = [*eval(f"range(5)[{chosen}]")] if ":" in chosen else [0, 4]
    files = {{0: 0, 1: 0, 2: 1, 3: 2, 4: 2}[number] for number in wanted}
    with bucket({"gdm-robotics-open-x-embodiment": tmp_path / "gdm"}) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", server.url)
        stored = StoredDataset(downloading.download(RECORDS, settings=settings, selection=Selection(episodes=chosen)))
        asked = {request.path for request in server.requests if ".tfrecord-" in request.path}

    assert stored.episodes["source"].tolist() == wanted
    assert stored.episodes.lengths.tolist() == [len(raw.golden(raw.EPISODES[number], number)) for number in wanted]
    assert {int(path.partition(".tfrecord-")[2][:5]) for path in asked} == files


def test_only_as_many_archives_as_the_selected_episodes_need_are_fetched(both, tmp_path, settings):
    raw.write_archives(tmp_path / "hub", [raw.EPISODES[:2], raw.EPISODES[2:3], raw.EPISODES[3:], raw.EPISODES])
    part = Selection(episodes="1:3", options={"upstream": "hub"})
    stored = StoredDataset(downloading.download(ARCHIVES, settings=settings, selection=part))

    assert stored.episodes["source"].tolist() == [1, 2]
    assert stored.episodes.lengths.tolist() == [2, 2]
    fetched = {request.path.rpartition("_")[2] for request in both[1].requests if ".tar" in request.path}
    # An archive may be downloading when the last episode is read.
    assert fetched <= {"00000.tar", "00001.tar", "00002.tar"}
    assert len(stored.manifest.raw) == 2
    assert verify(stored.folder, deep=True).problems == ()


def test_episodes_of_archives_are_counted_without_those_that_have_no_action(tmp_path, convert):
    """The first archive has an episode of a single step, followed by episodes of 4, 5 and 6 steps."""
    made = [[raw.draw(steps, seed) for seed, steps in enumerate(lengths)] for lengths in ((1, 4, 5, 6), (7,))]
    raw.write_archives(tmp_path / "tree", made)

    stored = convert(ARCHIVES, episodes="2")

    assert stored.episodes.lengths.tolist() == [5]
    assert comparison.deep_problems(stored.folder) == []


def test_episodes_of_a_single_step_are_verified_where_the_last_step_is_kept(tmp_path, convert):
    raw.write_archives(tmp_path / "tree", [[raw.draw(1, 0), raw.draw(3, 1), raw.draw(1, 2)]])

    stored = convert(ARCHIVES, last_step="transition")

    assert stored.episodes.lengths.tolist() == [1, 3, 1]
    assert comparison.deep_problems(stored.folder) == []


def test_episodes_of_archives_are_counted_across_an_interruption(both, tmp_path, settings):
    part = Selection(episodes="1,3:5", options={"upstream": "hub"})
    raw.write_archives(tmp_path / "hub", raw.FILES)
    stop = both[1].paths[f"/{raw.REPO}/"].replaced
    stop[f"{raw.HUB}/{raw.HUB}_00002.tar"] = Status(500)
    with pytest.raises(FetchError):
        downloading.download(ARCHIVES, settings=settings, selection=part)
    assert list((settings.home / "openx" / raw.HUB).glob("build-*/journal.jsonl"))
    before = len([one for one in both[1].requests if "_00000.tar" in one.path])
    stop.clear()

    stored = StoredDataset(downloading.download(ARCHIVES, settings=settings, selection=part))

    assert stored.episodes["source"].tolist() == [1, 3, 4]
    assert stored.episodes.lengths.tolist() == [2, 5, 3]
    assert len([one for one in both[1].requests if "_00000.tar" in one.path]) == before


def test_archives_are_counted_from_the_first(tmp_path, convert):
    raw.write_archives(tmp_path / "tree", raw.FILES)

    with pytest.raises(InvalidArgumentError, match="not known before the files are read"):
        convert(ARCHIVES, episodes="-2:")


def test_max_size_selects_the_first_files_that_fit(tmp_path, settings):
    folder = raw.write_archives(tmp_path / "tree", raw.FILES)
    size = (folder / f"{raw.HUB}_00000.tar").stat().st_size
    part = Selection(max_size=size + 100, options={"upstream": "hub"})
    stored = StoredDataset(
        downloading.download(ARCHIVES, from_local=tmp_path / "tree", settings=settings, selection=part)
    )

    assert stored.episodes.lengths.tolist() == [4, 2]


# --- pickles


def pickled(tmp_path, *episodes, protocol=4):
    raw.write_archives(tmp_path / "tree", [[pickle.dumps(one, protocol) for one in episodes]])


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_every_protocol_are_read(tmp_path, convert, protocol):
    pickled(tmp_path, raw.plain(raw.EPISODES[0]), protocol=protocol)

    stored = convert(ARCHIVES)
    assert np.array_equal(stored.column(("action", "world_vector")), raw.EPISODES[0].vector[:-1])


def test_python_numbers_become_float32_and_numpy_numbers_keep_their_dtype(tmp_path, convert):
    made = raw.plain(raw.EPISODES[0])
    for step in made["steps"]:
        step["observation"]["state"] = [0.1, 0.5]
        step["observation"]["pose"] = np.arange(3.0)
        step["grip"] = 1
    pickled(tmp_path, made)

    stored = convert(ARCHIVES)
    assert stored.column(("observation", "state")).dtype == np.float32
    assert stored.column(("observation", "pose")).dtype == np.float64
    assert stored.column(("grip",)).dtype == np.int64
    # 0.5 is exact in float32, and 0.1 is not.
    assert decided(stored)["python-floats"] == 5


def test_a_field_that_is_none_at_every_step_is_left_out(tmp_path, convert):
    pickled(tmp_path, raw.plain(raw.EPISODES[0]))

    assert ("language_embedding",) not in convert(ARCHIVES).schema


def test_the_last_step_of_a_pickle_may_have_only_an_observation(tmp_path, convert):
    made = raw.plain(raw.EPISODES[0])
    for name in ("action", "reward", "discount"):
        del made["steps"][-1][name]
    pickled(tmp_path, made)

    assert convert(ARCHIVES).episodes.lengths.tolist() == [4]
    with pytest.raises(ConversionError, match=r"action\.world_vector has 4 values for 5 steps"):
        convert(ARCHIVES, last_step="transition")


@pytest.mark.parametrize("keys", [(), ("action",), ("episode_metadata",)])
def test_a_last_step_with_only_an_observation_is_not_counted(tmp_path, convert, keys):
    """Four of five steps have an action, for any selection of fields."""
    made = raw.plain(raw.EPISODES[0])
    for step in made["steps"]:
        for name in ("is_first", "is_last", "is_terminal", "reward", "discount"):
            del step[name]
    for name in ("action", "language_instruction"):
        del made["steps"][-1][name]
    pickled(tmp_path, made)

    stored = convert(ARCHIVES, keys=keys)

    assert stored.episodes.lengths.tolist() == [4]
    assert comparison.deep_problems(stored.folder) == []


@pytest.mark.parametrize(
    ("value", "said"), [(0.5, "is float32"), ("yes", "is text"), (10**30, "is missing"), (None, "is missing")]
)
def test_numeric_episode_metadata_keeps_its_dtype(tmp_path, convert, value, said):
    first, second = raw.plain(raw.EPISODES[0]), raw.plain(raw.EPISODES[1])
    first["episode_metadata"]["success"] = 1
    second["episode_metadata"]["success"] = value
    pickled(tmp_path, first, second)

    with pytest.raises(ConversionError, match=rf"episode_metadata\.success {said}, in the first episode int64"):
        convert(ARCHIVES)


def test_names_that_are_not_text_are_refused(tmp_path, convert):
    made = raw.plain(raw.EPISODES[0])
    for step in made["steps"]:
        step["observation"][1] = 2.0
    pickled(tmp_path, made)

    with pytest.raises(ConversionError, match="the field name 1, expected a string"):
        convert(ARCHIVES)


def test_an_episode_that_differs_from_the_first_one_is_refused_with_all_differences(tmp_path, convert):
    other = raw.plain(raw.EPISODES[1])
    for step in other["steps"]:
        step["observation"]["state"] = [1.0]
        step["force"] = 1.0
        step["language_instruction"] = 4
    pickled(tmp_path, raw.plain(raw.EPISODES[0]), other)

    with pytest.raises(ConversionError) as caught:
        convert(ARCHIVES)

    assert len(caught.value.problems) == 3
    for word in ("force, unlike the first episode", "observation.state is float32 [1]", "has numbers"):
        assert word in str(caught.value)


def test_the_estimate_has_the_size_of_decoded_and_of_encoded_images(tmp_path, settings):
    raw.write_records(tmp_path / "tree", raw.FILES)
    plans = [
        planning.plan(
            RECORDS, from_local=tmp_path / "tree", settings=settings, selection=Selection(options={"images": images})
        )
        for images in ("raw", "encoded")
    ]

    assert [next(iter(plan.choices)) for plan in plans] == ["images=raw", "images=encoded"]
    assert plans[0].choices == plans[1].choices
    assert plans[0].stored_bytes > plans[1].stored_bytes


def test_verify_finds_an_episode_that_is_not_in_the_raw_files(tmp_path, convert):
    raw.write_records(tmp_path / "tree", [[replace(raw.EPISODES[0], success=True)] * 2])
    stored = convert()
    folder = tmp_path / "tree" / raw.NAME / raw.VERSION
    files = {str(path): path for path in folder.iterdir()}
    column = comparison.column_of(stored)

    assert comparison.compare(f"openx/{raw.NAME}", files, column, stored.episodes) == []
    moved = {**{name: stored.episodes[name] for name in ("final_known",)}, "source": stored.episodes["source"] + 5}
    assert comparison.compare(f"openx/{raw.NAME}", files, column, moved) == ["2 episodes are not in the raw files"]


PEAK = """
import sys
from pathlib import Path
from datasets_rl import Selection, downloading
from datasets_rl.downloading import planning
from datasets_rl.settings import Settings

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

small, large, home, name = sys.argv[1:]
before = 0
for tree in (small, large):
    settings = Settings(home=Path(home) / Path(tree).name, progress=False, jobs=1)
    downloading.download(name, from_local=tree, settings=settings)
    before, after = peak(), before
print((before - after) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
@pytest.mark.parametrize("write", [raw.write_records, raw.write_archives], ids=["records", "archives"])
def test_one_episode_of_many_large_frames_takes_little_memory(tmp_path, write):
    """400 frames of 480 x 640 are 369 MB of pixels, and 20 MB of JPEG."""
    frame = encoded(scene(480, 640), "JPEG", quality=60)
    for name, steps in (("small", 20), ("large", 400)):
        drawn = replace(raw.draw(steps, 1, 8), images=[frame] * steps)
        if write is raw.write_records:
            made = raw.flat(drawn)
            depth = [name for name in made if name.endswith(("depth", "metres"))]
            features = {key: value for key, value in made.items() if key not in depth}
            document = raw.features(480)
            known = document["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
            inside = known["observation"]["featuresDict"]["features"]
            del inside["depth"], inside["metres"]
            inside["image"] = raw.image("uint8", 480, 640, 3, form="jpeg")
            write(tmp_path / name, [[features]], document=document)
        else:
            write(tmp_path / name, [[drawn]])
    name = RECORDS if write is raw.write_records else ARCHIVES
    words = [tmp_path / "small", tmp_path / "large", tmp_path / "home", name]

    done = subprocess.run([sys.executable, "-c", PEAK, *map(str, words)], capture_output=True, text=True, check=True)

    assert int(done.stdout) < 120
