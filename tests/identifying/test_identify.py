"""``identify``: exact copies in any format, near copies, and no strangers."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from exports import export_stored
from fingerprints import planted

from datasets_rl.identifying import identify
from datasets_rl.identifying.index import Index
from datasets_rl.settings import Settings


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with two datasets, ``local/robot`` and ``local/maze``, of 8 episodes each."""
    home = tmp_path_factory.mktemp("home")
    for name in ("noisy", "maze"):
        make = getattr(planted, name)
        planted.store(home / "local" / name, [make(seed) for seed in range(8)], f"local/{name}")
    return home


def settings(home):
    return Settings(home=home, progress=False, jobs=1)


def counts(identity):
    return [(match.id, match.exact, match.partial, match.near) for match in identity.matches]


@pytest.mark.parametrize("to", ["npz", "d4rl", pytest.param("hdf5", marks=pytest.mark.slow)])
def test_every_episode_is_found_in_the_export_to_another_format(tmp_path, home, to):
    stored = planted.store(tmp_path / "data", [planted.noisy(seed) for seed in (5, 2, 7)])
    out = export_stored(stored, to, tmp_path / f"export{'.hdf5' if to == 'd4rl' else ''}")

    identity = identify(out, settings=settings(home))

    assert counts(identity) == [("local/noisy", 3, 0, 0)]
    assert (identity.unknown, identity.uninformative, identity.searched) == (0, 0, 2)
    assert sorted(path.name for path in home.iterdir()) == [".identify", "local"]


@pytest.mark.slow
@pytest.mark.parametrize("to", ["lerobot", "minari", "rlds", "parquet"])
def test_every_episode_is_found_in_the_export_to_further_formats(tmp_path, home, to):
    stored = planted.store(tmp_path / "data", [planted.noisy(seed) for seed in (5, 2, 7)])
    out = export_stored(stored, to, tmp_path / "export")

    identity = identify(out, settings=settings(home))

    assert [(match.id, match.found) for match in identity.matches] == [("local/noisy", 3)]


@pytest.mark.parametrize("change", ["rounded", "scaled", "trimmed", "shortened", "halved", "everything"])
def test_near_copies_are_found_with_what_changed(tmp_path, home, change):
    copies = [copy for seed in (1, 6) for copy in getattr(planted, change)(planted.noisy(seed))]
    stored = planted.store(tmp_path / "data", copies)

    identity = identify(stored.folder, settings=settings(home))

    assert [(match.id, match.found) for match in identity.matches] == [("local/noisy", len(copies))]
    assert identity.matches[0].near == (0 if change == "scaled" else len(copies))


@pytest.mark.parametrize("near", [False, True])
def test_pixels_are_recognized_by_the_actions_beside_them(tmp_path, near):
    """The images of the copy have other bytes in every step, and no field is a state."""

    def pixels(seed):
        rows = planted.camera(seed)
        del rows["observation.state"]
        return rows

    def changed(seed):
        (rows,) = planted.lossy(pixels(seed))
        if near:
            (rows,) = planted.trimmed(rows)
            rows["action"] = np.float32(np.float16(rows["action"]))
        return rows

    planted.store(tmp_path / "home" / "local" / "pixels", map(pixels, range(6)), "local/pixels")
    stored = planted.store(tmp_path / "data", map(changed, (4, 1, 21, 22)))

    identity = identify(stored.folder, settings=settings(tmp_path / "home"))

    assert counts(identity) == [("local/pixels", 0, 0, 2) if near else ("local/pixels", 0, 2, 0)]
    assert (identity.unknown, identity.uninformative) == (2, 0)
    assert "observation.pixels" not in identity.matches[0].fields


def test_a_removed_dataset_is_not_found_and_a_new_one_is(tmp_path, home):
    copy = tmp_path / "home"
    shutil.copytree(home, copy)
    stored = planted.store(tmp_path / "data", [planted.maze(3)])

    assert counts(identify(stored.folder, settings=settings(copy))) == [("local/maze", 1, 0, 0)]
    shutil.rmtree(copy / "local" / "maze")
    assert not identify(stored.folder, settings=settings(copy)).known
    planted.store(copy / "local" / "other", [planted.maze(3), planted.maze(9)], "local/other")
    assert counts(identify(stored.folder, settings=settings(copy))) == [("local/other", 1, 0, 0)]


def test_scripted_and_constant_episodes_are_counted_and_match_nothing(tmp_path, home):
    planted.store(home / "local" / "script", [planted.scripted(seed) for seed in range(3)], "local/script")
    stored = planted.store(tmp_path / "data", [planted.scripted(seed) for seed in range(2)])

    identity = identify(stored.folder, settings=settings(home))

    shutil.rmtree(home / "local" / "script")
    assert (identity.known, identity.uninformative, identity.unknown) == (False, 2, 0)


@pytest.mark.parametrize(
    "kind",
    ["robot with noise", "gait without noise", *(pytest.param(kind, marks=pytest.mark.slow) for kind in planted.KINDS)],
)
def test_episodes_of_other_seeds_are_not_found(tmp_path, kind):
    found, equal, searched = planted.strangers(kind, 20, tmp_path)

    assert (found, searched) == (equal, 20)


@pytest.mark.slow
@pytest.mark.parametrize("kind", planted.KINDS)
def test_planted_copies_are_found(tmp_path, kind):
    episodes = [planted.KINDS[kind](seed) for seed in range(40)]
    stored = planted.store(tmp_path / "known", episodes)

    shares = {}
    for change in [*planted.CHANGES, planted.JOINED]:
        found, count = planted.share_found(kind, change, stored, episodes, tmp_path)
        shares[change] = found / max(count, 1)

    assert min(shares.values()) >= 0.99, shares
    assert shares["other keys and dtypes"] == 1


def test_an_index_of_many_episodes_is_searched_without_a_pass_over_it():
    """The words of a hundred thousand episodes: the occurrences are those of a slow search."""
    generator = np.random.default_rng(0)
    hashes = np.sort(generator.integers(1, 50_000, 100_000).astype(np.uint32))
    windows = np.zeros(100_000, [("episode", "<u4"), ("step", "<u4")])
    windows["step"] = np.arange(100_000)
    index = Index(np.array([0, 1]), np.empty(0, np.uint64), np.empty(0, np.uint32), hashes, windows)
    wanted = np.array([0, 7, 49_999, 25_000], np.uint32)

    positions, found = index.windows_of(wanted, 1000)

    slow = [(place, int(row)) for place in range(1, 4) for row in np.flatnonzero(hashes == wanted[place])]
    assert list(zip(positions.tolist(), found[:, 2].tolist(), strict=True)) == slow
