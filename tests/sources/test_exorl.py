"""Ids, alignment, folders and rewards of ExORL, and the replay buffers of DrQ-v2, which have the same files."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from raw.exorl import MAZE, WALKER, arrays_of, draw, npz, write_zip
from servers import Status, serve

from datasets_rl import ExORLExperienceReplay, LocalExperienceReplay, Selection, downloading
from datasets_rl.errors import ConversionError, FetchError, UnknownIdError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.preprocessing import DataStep, Recipe
from datasets_rl.settings import Settings
from datasets_rl.sources import find, get_source

GOLDEN = Path(__file__).parents[1] / "golden" / "dm_control.npz"
DRQ = """
name = "Walker, a run of DrQ-v2"
alignment = "action-before"

[fields]
info.physics = { array = "physics", state = true }
"""


@pytest.fixture
def convert(tmp_path):
    def run(name="walker/rnd", folder=tmp_path / "raw", **selection):
        settings = Settings(home=tmp_path / "home", progress=False, retries=0)
        return StoredDataset(
            downloading.download(
                f"exorl/{name}", from_local=folder, settings=settings, selection=Selection(**selection)
            )
        )

    return run


@pytest.fixture
def golden(tmp_path):
    """The transitions that an agent saw, beside the zip file of its episodes: tests/golden/make_dm_control.py."""
    with np.load(GOLDEN) as file:
        arrays = {name.removeprefix("exorl/"): file[name] for name in file.files if name.startswith("exorl")}
    path = tmp_path / "raw" / WALKER
    path.parent.mkdir(parents=True)
    path.write_bytes(arrays.pop("exorl").tobytes())
    return arrays


def rules(stored):
    return {one.rule: one.count for one in stored.manifest.decisions}


def unpack(path, folder):
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)


def test_there_are_54_ids():
    ids = get_source("exorl").ids()

    assert len(ids) == 54
    assert find("exorl/walker/rnd").bytes == 2585461986
    assert find("exorl/jaco/proto").episodes == 40_000
    with pytest.raises(UnknownIdError):
        find("exorl/walker/sac")


def test_episodes_are_those_that_the_agent_saw(golden, convert):
    del golden["run"]

    stored = convert()

    assert stored.episodes.lengths.tolist() == [40, 40]
    for name, values in golden.items():
        assert np.array_equal(stored.column(tuple(name.split("."))), values), name
    assert stored.column(("info", "physics")).dtype == np.float64
    assert np.flatnonzero(stored.column(("next", "truncated"))).tolist() == [39, 79]
    assert rules(stored) == {"action-before-observation": 80}


def test_an_unpacked_folder_is_the_same_dataset(golden, convert, tmp_path):
    assert golden
    stored = convert()
    for place in ("walker/rnd", "plain"):
        unpack(tmp_path / "raw" / WALKER, tmp_path / "unpacked" / place)
    settings = Settings(home=tmp_path / "other", progress=False)

    for folder in ("unpacked", "unpacked/plain", "unpacked/walker/rnd/buffer"):
        other = StoredDataset(
            downloading.download("exorl/walker/rnd", from_local=tmp_path / folder, settings=settings, force=True)
        )
        for field in stored.schema:
            assert np.array_equal(other.column(field.key), stored.column(field.key)), field.name


def test_files_of_a_folder_are_selected_by_globs(golden, convert, tmp_path):
    assert golden
    unpack(tmp_path / "raw" / WALKER, tmp_path / "unpacked")

    stored = convert(folder=tmp_path / "unpacked", exclude=("*_000000_*",))

    assert stored.episodes["episode_id"].tolist() == [1]


def test_a_zip_file_beside_unpacked_episodes_of_another_id_is_read(golden, convert, tmp_path):
    (tmp_path / "raw" / "episode_0_3.npz").write_bytes(npz(arrays_of(draw(MAZE, 3, 0))))

    assert len(convert()) == len(golden["action"])


def test_values_of_the_reset_are_never_stored(convert, tmp_path):
    """They are 7 in the test's files."""
    write_zip(tmp_path / "raw" / MAZE, {"buffer/episode_0_5.npz": npz(arrays_of(draw(MAZE, 5, 0)))})

    stored = convert("point_mass_maze/aps")

    for key in (("action",), ("next", "reward"), ("next", "task_reward"), ("meta", "task")):
        assert stored.column(key).max() < 7


def test_rewards_of_several_tasks_are_kept_beside_the_first(convert, tmp_path):
    rows = draw(MAZE, 5, 0)
    write_zip(tmp_path / "raw" / MAZE, {"buffer/episode_0_5.npz": npz(arrays_of(rows))})

    stored = convert("point_mass_maze/aps")

    assert np.array_equal(stored.column(("next", "task_reward")), rows["reward"])
    assert np.array_equal(stored.column(("next", "reward")), rows["reward"][:, :1])
    assert rules(stored)["reward-of-first-task"] == 5


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_rewards_may_have_one_axis(convert, tmp_path, shape):
    arrays = arrays_of(draw(WALKER, 5, 0))
    arrays |= {name: arrays[name].reshape(shape) for name in ("reward", "discount")}
    write_zip(tmp_path / "raw" / WALKER, {"buffer/episode_0_5.npz": npz(arrays)})

    assert convert().column(("next", "reward")).shape == (5, 1)


def test_a_discount_of_0_ends_an_episode_and_is_counted_elsewhere(convert, tmp_path):
    rows = draw(WALKER, 5, 0, terminated=True)
    rows["discount"][1] = 0
    write_zip(tmp_path / "raw" / WALKER, {"buffer/episode_0_5.npz": npz(arrays_of(rows))})

    stored = convert()

    assert np.flatnonzero(stored.column(("next", "terminated"))).tolist() == [4]
    assert rules(stored)["discount-0-inside"] == 1


def test_episodes_are_in_the_order_of_their_numbers(convert, tmp_path):
    files = {f"buffer/episode_{n}_2.npz": npz(arrays_of(draw(WALKER, 2, n))) for n in (10, 9, 100)}
    write_zip(tmp_path / "raw" / WALKER, files)

    assert convert().episodes["episode_id"].tolist() == [9, 10, 100]


def test_the_zip_file_is_downloaded_from_the_server(golden, tmp_path, monkeypatch):
    path = tmp_path / "raw" / WALKER
    with serve({"/walker/rnd.zip": path}) as server:
        monkeypatch.setenv("RLDS_MIRRORS", f"exorl={server.url}")
        dataset = ExORLExperienceReplay("walker/rnd", 8, root=tmp_path / "root")

    batch = dataset.sample()
    assert batch["info", "physics"].shape == (8, 18)
    assert len(dataset) == len(golden["action"])


@pytest.mark.slow
def test_a_server_that_states_no_size_serves_the_file_in_sixteen_shards(golden, tmp_path):
    data = (tmp_path / "raw" / WALKER).read_bytes()

    class Unsized:
        def answer(self, call):
            call.start(200, {"Content-Type": "application/zip", "Connection": "close"})
            if call.command != "HEAD":
                call.wfile.write(data)
            call.close_connection = True

    with serve({"/walker/rnd.zip": Unsized()}) as server:
        settings = Settings(home=tmp_path / "home", progress=False, mirrors={"exorl": [server.url]})
        stored = StoredDataset(downloading.download("exorl/walker/rnd", settings=settings))

    assert np.array_equal(stored.column(("action",)), golden["action"])


def test_a_server_that_refuses_is_an_error_with_its_address(tmp_path, monkeypatch):
    with serve({"/walker/rnd.zip": Status(403)}) as server:
        monkeypatch.setattr(
            get_source("exorl"), "catalog", {**get_source("exorl").catalog, "base_urls": [f"{server.url}/"]}
        )
        settings = Settings(home=tmp_path / "home", progress=False, retries=0)

        with pytest.raises(FetchError, match="403"):
            downloading.download("exorl/walker/rnd", settings=settings)


def test_a_folder_without_episodes_is_refused(convert, tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "notes.txt").write_text("nothing")

    with pytest.raises((ConversionError, FetchError), match="rnd"):
        convert()


def test_rewards_are_relabeled_by_a_step_of_the_user(golden, convert, tmp_path):
    """The rewards of another task are those that dm_control computes from the stored states of its simulator."""
    known = {state.tobytes(): reward for state, reward in zip(golden["next.info.physics"], golden["run"], strict=True)}

    @dataclass
    class Relabel(DataStep):
        """Look up the reward of each state after a step."""

        def __call__(self, batch):
            physics = np.asarray(batch.next_states(("info", "physics")))
            rewards = np.array([known[state.tobytes()] for state in physics], np.float32)
            return replace(batch, steps={**batch.steps, ("next", "reward"): rewards})

    convert()
    dataset = ExORLExperienceReplay("walker/rnd", root=tmp_path / "home" / "exorl", download=False)

    dataset.preprocess(Recipe([Relabel()]), dest=tmp_path / "run")

    relabeled = StoredDataset(tmp_path / "run")
    assert np.array_equal(relabeled.column(("next", "reward")), golden["run"])
    assert not np.array_equal(golden["run"], golden["next.reward"])


def test_a_replay_buffer_of_drq_opens_as_a_folder_of_the_user(golden, tmp_path):
    """Its files are named by time, number and steps."""
    folder = tmp_path / "buffer"
    folder.mkdir()
    with zipfile.ZipFile(tmp_path / "raw" / WALKER) as archive:
        for number, name in enumerate(sorted(archive.namelist())):
            (folder / f"20220201T12000{number}_{number}_40.npz").write_bytes(archive.read(name))
    (folder / "dataset.toml").write_text(DRQ)

    dataset = LocalExperienceReplay("drq", folder=folder, root=tmp_path / "home")

    for name in ("observation", "action", "next.reward", "info.physics", "next.info.physics"):
        assert np.array_equal(dataset.stored.column(tuple(name.split("."))), golden[name]), name
    assert dataset.episodes.lengths.tolist() == [40, 40]


def test_images_of_drq_are_read_like_states(tmp_path, convert):
    """DrQ-v2 stacks three images; the reader has no option for it, because the shape is in the file."""
    arrays = arrays_of(draw(WALKER, 4, 0))
    arrays["observation"] = np.random.default_rng(0).integers(0, 256, (5, 9, 84, 84), np.uint8)
    del arrays["physics"]
    with io.BytesIO(npz(arrays)) as file:
        write_zip(tmp_path / "raw" / WALKER, {"buffer/20220201T120000_0_4.npz": file.read()})

    stored = convert()

    assert np.array_equal(stored.column(("next", "observation")), arrays["observation"][1:])
