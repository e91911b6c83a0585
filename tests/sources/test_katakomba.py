"""Screens, ends and attributes of Katakomba's games."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from raw.katakomba import FILE, play, write_file

from datasets_rl import KatakombaExperienceReplay, Selection, downloading, normalized_score
from datasets_rl.errors import UnknownIdError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources import find, get_source

CHARS = ("observation", "tty_chars")


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.fixture
def convert(tmp_path):
    def run(games=None, **selection):
        folder = tmp_path / "raw"
        folder.mkdir(exist_ok=True)
        if games is not None:
            write_file(folder / FILE, games)
        settings = Settings(home=tmp_path / "home", progress=False, retries=0)
        chosen = Selection(**selection)
        path = downloading.download("katakomba/mon-hum-neu", from_local=folder, settings=settings, selection=chosen)
        return StoredDataset(path)

    return run


def rules(stored):
    return {one.rule: one.count for one in stored.manifest.decisions}


def test_there_are_38_characters_with_the_steps_of_the_readme():
    ids = get_source("katakomba").ids()

    assert len(ids) == 38
    assert find("katakomba/tou-hum-neu").steps == 13_376_498
    assert find("katakomba/val-dwa-law").title == "NetHack: a lawful dwarvish valkyrie"
    assert find("katakomba/val-dwa-law").bytes == 2_500_000_000


@pytest.mark.parametrize("name", ["mon-elf-neu", "mon-hum-neu-any", "data-mon-hum-neu-any"])
def test_other_characters_are_unknown(name):
    with pytest.raises(UnknownIdError):
        find(f"katakomba/{name}")


def test_screens_are_compressed_if_that_makes_them_four_times_smaller(convert, rng):
    game = play(rng, 600)

    stored = convert({"7": game})

    assert [stored.schema["observation", part].form for part in ("tty_chars", "tty_colors", "tty_cursor")] == [
        "compressed",
        "compressed",
        "raw",
    ]
    assert np.array_equal(stored.column(CHARS), game["tty_chars"])
    assert np.array_equal(stored.column(("observation", "tty_colors")), game["tty_colors"])
    held = sum(file.bytes for file in stored.manifest.files if "tty_c" in file.path)
    assert held < 600 * 2 * 24 * 80 / 8


def test_screens_of_noise_stay_bytes_of_the_rows(convert, rng):
    game = {**play(rng, 30), "tty_chars": rng.integers(0, 256, (30, 24, 80), np.uint8)}

    stored = convert({"7": game}, keys=("observation.tty_chars",))

    assert stored.schema[CHARS].form == "raw"
    assert not stored.schema[CHARS].wide
    assert np.array_equal(stored.column(CHARS), game["tty_chars"])


def test_the_last_screen_is_unknown_and_the_last_reward_is_counted(convert, rng):
    games = {"3": play(rng, 9), "1": play(rng, 4)}

    stored = convert(games)

    assert stored.episodes.lengths.tolist() == [9, 4]
    assert not stored.episodes["final_known"].any()
    assert not stored.column(("next", *CHARS))[8].any()
    assert np.flatnonzero(stored.column(("next", "terminated"))).tolist() == [8, 12]
    assert rules(stored)["last-reward-repeated"] == 2
    assert stored.column(("next", "reward")).dtype == np.float32


def test_a_game_that_is_not_done_is_truncated(convert, rng):
    game = play(rng, 5)

    stored = convert({"3": {**game, "dones": np.zeros(5, bool)}})

    assert np.flatnonzero(stored.column(("next", "truncated"))).tolist() == [4]
    assert not stored.column(("next", "terminated")).any()
    assert rules(stored)["end-without-flag"] == 1


def test_attributes_of_games_are_in_the_episode_table_and_texts_in_the_metadata(convert, rng, tmp_path):
    stored = convert({"30": play(rng, 3, points=77), "4": play(rng, 2, points=5)})

    assert stored.episodes["game"].tolist() == [30, 4]
    assert stored.episodes["points"].tolist() == [77, 5]
    dataset = KatakombaExperienceReplay("mon-hum-neu", 2, root=tmp_path / "home" / "katakomba", download=False)
    assert [*dataset.metadata["games"]["death"]] == ["killed by a newt, 77", "killed by a newt, 5"]


def test_actions_of_16_bits_are_kept(convert, rng):
    game = play(rng, 6)

    stored = convert({"1": {**game, "actions": game["actions"].astype(np.int16)}})

    assert stored.column(("action",)).dtype == np.int16
    assert np.array_equal(stored.column(("action",))[:, 0], game["actions"])


def test_long_games_are_read_in_pieces(convert, rng, monkeypatch):
    monkeypatch.setattr("datasets_rl.sources.rows._CHUNK_BYTES", 50_000)  # 13 rows
    game = play(rng, 100)

    stored = convert({"1": game, "2": play(rng, 13)})

    assert stored.episodes.lengths.tolist() == [100, 13]
    assert np.array_equal(stored.column(("next", *CHARS))[:99], game["tty_chars"][1:])


def test_games_are_selected_by_their_order_in_the_file(convert, rng):
    stored = convert({name: play(rng, length) for name, length in (("9", 3), ("2", 5), ("5", 4))}, episodes="1:3")

    assert stored.episodes["game"].tolist() == [2, 5]


def test_a_selection_without_screens_does_not_read_them(convert, rng, tmp_path):
    (tmp_path / "raw").mkdir()
    write_file(tmp_path / "raw" / FILE, {"1": play(rng, 6)})
    with h5py.File(tmp_path / "raw" / FILE, "r+") as file:
        file["1/tty_chars"].id.write_direct_chunk((0, 0, 0), bytes(200))  # damages the screens alone

    stored = convert(keys=("action",))

    assert {field.key for field in stored.schema} >= {("action",), ("next", "reward")}
    assert CHARS not in stored.schema


def test_scores_are_those_of_the_bot():
    assert normalized_score("katakomba/val-hum-law", 26103.03) == 1
    assert normalized_score("katakomba/mon-hum-neu", (17288.62 + 17635.66) / 2) == 1
    assert normalized_score("katakomba/mon-hum-neu", 0) == 0


def test_batches_have_screens_and_the_mask_of_the_unknown_ones(convert, rng, tmp_path):
    convert({"1": play(rng, 300)})

    dataset = KatakombaExperienceReplay("mon-hum-neu", 16, root=tmp_path / "home" / "katakomba", download=False)

    batch = dataset.sample()
    assert batch["observation", "tty_chars"].shape == (16, 24, 80)
    assert batch["next", "final_known"].shape == (16, 1)
