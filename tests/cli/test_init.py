"""``rlds init``: the description that it writes, and what ``--check`` and ``rlds info`` say about files of the user."""

from __future__ import annotations

import os
import pickle
import subprocess
from dataclasses import asdict
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

from datasets_rl.format.reader import StoredDataset
from datasets_rl.sources.local.files import check_files, describe_files

LENGTHS = [3, 5, 2]
ROWS = sum(LENGTHS)
STOPS = np.cumsum(LENGTHS)
OBS = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
ACTION = np.arange(ROWS)
DONE = np.isin(np.arange(ROWS), STOPS - 1)
FLAT = {"obs": OBS, "action": ACTION, "reward": np.linspace(-1, 1, ROWS)}


def parts(values):
    return np.split(values, STOPS[:-1])


def with_finals(values):
    """Return rows with a row more for each episode."""
    return np.concatenate([np.concatenate([part, part[-1:] + 1]) for part in parts(values)])


def padded(values):
    out = np.zeros((3, 5, *values.shape[1:]), values.dtype)
    for row, part in zip(out, parts(values), strict=True):
        row[: len(part)] = part
    return out


def npz(**others):
    return lambda path: np.savez(path, **{**FLAT, **others})


def write_groups(path):
    with h5py.File(path, "w") as file:
        for name, values in FLAT.items():
            for number, part in enumerate(parts(values)):
                file[f"runs/episode_{number}/{name}"] = part


def write_imitation(path):
    others = {"infos": np.array([{}] * ROWS, dtype=object), "indices": STOPS[:-1]}
    flags = {"terminal": np.array([True, False, True])}
    np.savez(path, obs=with_finals(OBS), acts=ACTION, rews=FLAT["reward"], **others, **flags)


def frame():
    return pd.DataFrame(
        {**{f"obs_{n}": OBS[:, n] for n in range(3)}, "action": ACTION, "reward": FLAT["reward"], "done": DONE}
    )


def episodes():
    return [dict(zip(FLAT, arrays, strict=True)) for arrays in zip(*map(parts, FLAT.values()), strict=True)]


LAYOUTS = {
    "flags.npz": ("flags", npz(terminals=DONE)),
    "starts.npz": ("starts", npz(episode_starts=np.roll(DONE, 1))),
    "lengths.npz": ("lengths", npz(episode_lengths=np.array(LENGTHS))),
    "ends.npz": ("ends", npz(episode_ends=STOPS)),
    "column.npz": ("column", npz(episode_id=np.repeat([4, 5, 6], LENGTHS))),
    "steps.npz": ("steps", npz(timestep=np.concatenate([np.arange(length) for length in LENGTHS]))),
    "more.npz": ("lengths", npz(obs=with_finals(OBS), episode_lengths=np.array(LENGTHS))),
    "imitation.npz": ("starts", write_imitation),
    "mask.npz": (
        "axis",
        lambda path: np.savez(path, mask=padded(np.ones(ROWS, bool)), **{n: padded(v) for n, v in FLAT.items()}),
    ),
    "groups.hdf5": ("group", write_groups),
    "suffix.npz": (
        "suffix",
        lambda path: np.savez(path, **{f"{n}_{e}": v for e, one in enumerate(episodes()) for n, v in one.items()}),
    ),
    "episodes.pkl": ("group", lambda path: path.write_bytes(pickle.dumps(episodes()))),
    "objects.npy": ("group", lambda path: np.save(path, np.array(episodes(), dtype=object), allow_pickle=True)),
    "table.csv": ("flags", lambda path: frame().to_csv(path, index=False)),
    "lines.jsonl": ("flags", lambda path: frame().to_json(path, orient="records", lines=True, double_precision=15)),
    "table.parquet": ("flags", lambda path: frame().to_parquet(path)),
    "table.feather": ("flags", lambda path: frame().to_feather(path)),
}


def batch(path):
    np.savez(path, obs=np.arange(24.0).reshape(4, 3, 2), actions=np.arange(12).reshape(4, 3, 1))


@pytest.mark.first(8)
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_written_description_gives_what_the_evidence_gives(rlds, home, tmp_path, name):
    folder = tmp_path / "mine"
    folder.mkdir()
    by, write = LAYOUTS[name]
    write(folder / name)
    before = rlds("init", folder / name, "--check", "--json").json
    info = rlds("info", folder / name, "--json").json["found"]["read_as"]

    ran = rlds("init", folder / name)
    after = rlds("init", folder / name, "--check", "--json").json

    assert (ran.code, ran.out) == (0, f"{folder / 'dataset.toml'}\n")
    assert f'files = ["{name}"]' in (folder / "dataset.toml").read_text()
    assert "questions" not in ran.err
    assert info == before["read_as"]
    assert before["read_as"]["description"] is None
    assert after["read_as"]["description"] == str(folder / "dataset.toml")
    for found in (before, after):
        assert (found["read_as"]["by"], found["read_as"]["episodes"], found["read_as"]["files"]) == (by, 3, 1)
        assert (found["steps"], found["episodes"]) == (ROWS, 3)
        assert found["lengths"] == {"min": 2, "median": 3, "max": 5}
        assert [row["values"]["action"] for row in found["first_episode"]["rows"]] == [0, 1, 2]
        assert [row["step"] for row in found["last_episode"]["rows"]] == [0, 1]
        np.testing.assert_allclose(found["last_episode"]["rows"][0]["values"]["observation"], OBS[8], rtol=1e-6)
    assert after["decisions"] == before["decisions"]
    assert after["jumps"] == before["jumps"]
    assert not home.exists()

    assert rlds("download", "local/mine", "--from-local", folder, "-q").code == 0
    stored = StoredDataset(home / "local" / "mine")
    assert stored.episodes.lengths.tolist() == LENGTHS
    assert {one.rule: one.count for one in stored.manifest.decisions} == {
        one["rule"]: one["count"] for one in after["decisions"]
    }


def test_a_question_is_answered_in_the_written_file(rlds, tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    batch(folder / "a.npz")

    ran = rlds("init", folder)
    file = folder / "dataset.toml"
    text = file.read_text()
    unanswered = rlds("init", folder, "--check")
    file.write_text(text.replace("# by = ...", 'by = "axis"'))
    checked = rlds("init", folder, "--check", "--json").json

    assert (ran.code, unanswered.code) == (0, 8)
    assert "# by = ...    # the observations are float64 [4, 3, 2]" in text
    assert 'observation = "obs"    # float64 [4, 3, 2], first [0, 1, 2, 3, ...], [6, 7, 8, 9, ...]' in text
    assert "how do the episodes end?" in ran.err
    assert f"rlds download {folder}\n" in ran.err
    assert 'by = "axis" if row t of episode e is [e, t]' in unanswered.err
    assert (checked["episodes"], checked["steps"]) == (4, 12)
    made = rlds("download", folder, "-q").out.strip()
    assert StoredDataset(Path(made)).episodes.lengths.tolist() == [3, 3, 3, 3]


def test_unknown_names_are_asked_for_with_their_values(rlds, tmp_path):
    np.savez(tmp_path / "a.npz", x=OBS, u=ACTION, dones=DONE, task=np.array(["lift it"] * ROWS))

    ran = rlds("init", tmp_path / "a.npz", "--print", "--json").json

    assert (ran["file"], ran["certain"]) == (None, False)
    assert ran["questions"][:2] == ["which array is the observation?", "which array is the action?"]
    assert 'by = "flags"' in ran["toml"]
    assert '# ... = "u"    # int64 [10], first 0, 1, 2' in ran["toml"]
    assert '# ... = "task"    # text [10], first "lift it", "lift it", "lift it"' in ran["toml"]
    assert not (tmp_path / "dataset.toml").exists()


def test_of_very_many_arrays_the_first_ones_are_shown(rlds, tmp_path):
    np.savez(tmp_path / "a.npz", **{f"x_{number}": np.zeros((4, 2)) for number in range(100)})

    ran = rlds("init", tmp_path, "--print", "--json").json

    assert ran["questions"][2].startswith("which fields are x_0, x_1, x_2, x_3, x_4 and 95 more?")
    assert '"x_19"' in ran["toml"]
    assert '"x_20"' not in ran["toml"]
    assert ran["toml"].endswith("# and 80 more arrays\n")


def test_an_existing_description_is_never_replaced(rlds, tmp_path):
    LAYOUTS["flags.npz"][1](tmp_path / "a.npz")
    (tmp_path / "dataset.toml").write_text("# mine")

    for path in (tmp_path, tmp_path / "a.npz"):
        ran = rlds("init", path)
        assert ran.code == 2
        assert "dataset.toml is not replaced\n  why: it exists" in ran.err
    assert (tmp_path / "dataset.toml").read_text() == "# mine"
    assert rlds("init", tmp_path, "--print").code == 0


@pytest.fixture
def read_only(tmp_path):
    """A folder with a file, mounted so that nobody may write to it."""
    folder = tmp_path / "fixed"
    folder.mkdir()
    LAYOUTS["flags.npz"][1](folder / "a.npz")
    mounts = [["mount", "--bind", folder, folder], ["mount", "-o", "remount,bind,ro", folder]]
    if os.name == "nt" or any(subprocess.run(mount, capture_output=True, check=False).returncode for mount in mounts):
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_folder_that_takes_no_file_is_named_with_the_way_out(rlds, read_only):
    ran = rlds("init", read_only / "a.npz")

    assert ran.code == 1
    assert f"{read_only / 'dataset.toml'} cannot be written" in ran.err
    assert f"rlds init {read_only / 'a.npz'} --print" in ran.err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["nothing"], 2, "nothing does not exist"),
        (["empty"], 8, "it has neither dataset.toml nor a file of HDF5, npz"),
        (["a.npz", "--check", "--print"], 2, "expected --check or --print alone"),
        (["broken", "--check"], 8, "dataset.toml is not valid TOML"),
    ],
)
def test_a_path_that_cannot_be_described_is_refused(rlds, tmp_path, monkeypatch, words, code, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("")
    (tmp_path / "broken" / "dataset.toml").write_text("name = ")
    LAYOUTS["flags.npz"][1](tmp_path / "a.npz")

    ran = rlds("init", *words)

    assert ran.code == code
    assert text in ran.err


def test_a_wrong_boundary_is_the_largest_jump(rlds, tmp_path):
    walk = np.cumsum(np.full((40, 2), 0.1), axis=0)
    walk[25:] += 7
    np.savez(tmp_path / "a.npz", obs=walk, action=np.arange(40), reward=np.zeros(40), episode_ends=np.array([20, 40]))

    found = rlds("init", tmp_path / "a.npz", "--check", "--json").json["jumps"]

    assert [one["key"] for one in found] == ["observation"]
    assert found[0]["median"] == pytest.approx(0.1 * 2**0.5)
    assert found[0]["largest"][0] == {
        "episode": 1,
        "step": 4,
        "difference": pytest.approx(7.1 * 2**0.5),
        "file": "a.npz",
    }
    assert "7.1\t" not in rlds("init", tmp_path / "a.npz", "--check").out
    assert "\t0.1414\t10.04\t1\t4\ta.npz\n" in rlds("init", tmp_path / "a.npz", "--check").out


def test_a_jump_names_the_file_of_the_episode(rlds, tmp_path):
    for number in range(3):
        walk = np.cumsum(np.full((30, 2), 0.1), axis=0)
        walk[20:] += 7 * (number == 1)
        (tmp_path / "runs" / f"day{number}").mkdir(parents=True)
        np.savez(tmp_path / "runs" / f"day{number}" / "a.npz", obs=walk, action=np.zeros(30))

    found = rlds("init", tmp_path / "runs", "--check", "--json").json["jumps"][0]["largest"][0]

    assert (found["file"], found["episode"], found["step"]) == ("day1/a.npz", 1, 19)
    assert "\t1\t19\tday1/a.npz\n" in rlds("init", tmp_path / "runs", "--check").out


def test_groups_of_unknown_names_are_episodes_whose_fields_are_asked_for(rlds, tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, length in enumerate((4, 6, 3)):
            file[f"run_{number}/sensors"], file[f"run_{number}/cmd"] = np.ones((length, 2)), np.zeros(length)

    drafted = rlds("init", tmp_path / "a.h5", "--print", "--json").json
    text = (
        drafted["toml"]
        .replace('# ... = "cmd"', 'action = "cmd"')
        .replace('# ... = "sensors"', 'observation = "sensors"')
    )
    (tmp_path / "dataset.toml").write_text(text)

    assert 'by = "group"' in text
    assert drafted["questions"][2].startswith("which fields are cmd, sensors?")
    checked = rlds("init", tmp_path, "--check", "--json").json
    assert (checked["episodes"], checked["lengths"]["max"]) == (3, 6)


def test_groups_of_equal_rows_and_unknown_names_are_asked_for(rlds, tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(3):
            file[f"part{number}/x"], file[f"part{number}/u"] = np.ones((4, 2)), np.zeros(4)

    ran = rlds("init", tmp_path / "a.h5", "--print", "--json").json

    assert ran["questions"][0] == "how do the episodes end? each numbered group may be an episode, an agent or a sensor"
    assert '# by = "group" for episodes' in ran["toml"]
    assert '# ... = "x"    # float64 [12, 2]' in ran["toml"]


def test_the_error_of_a_download_names_the_command_that_drafts_a_description(rlds, tmp_path):
    np.savez(tmp_path / "a.npz", x=OBS, u=ACTION)
    (tmp_path / "runs" / "deep").mkdir(parents=True)
    for number in range(2):
        np.savez(tmp_path / "runs" / "deep" / f"{number}.npz", x=OBS, u=ACTION)

    assert f"rlds init {tmp_path / 'a.npz'}" in rlds("download", tmp_path / "a.npz").err
    assert f"rlds init {tmp_path / 'runs'} " in rlds("download", tmp_path / "runs").err


def test_episodes_in_pieces_are_counted_as_whole_ones(tmp_path):
    rows = 300_000
    obs = np.arange(rows * 16, dtype=np.float64).reshape(rows, 16)
    obs[200_000:] += 1000
    np.savez(
        tmp_path / "a.npz", obs=obs, action=np.arange(rows), reward=np.zeros(rows), episode_ends=np.array([1000, rows])
    )

    found = check_files(tmp_path / "a.npz")

    assert found.lengths == {"min": 1000, "median": 150_000, "max": 299_000}
    assert [row.step for row in found.last.rows] == [0, 1, 298_998, 298_999]
    assert [asdict(row)["values"]["action"] for row in found.last.rows] == [1000, 1001, rows - 2, rows - 1]
    assert found.jumps[0].median == 16 * 4
    largest = found.jumps[0].largest[0]
    assert (largest.difference, largest.episode, largest.step) == (1016 * 4, 1, 198_999)


def test_only_the_last_states_that_are_known_are_compared(tmp_path):
    np.savez(tmp_path / "a.npz", **{**FLAT, "obs": with_finals(np.zeros_like(OBS))}, episode_lengths=np.array(LENGTHS))

    found = check_files(tmp_path / "a.npz")

    assert [(one.episode, one.step) for one in found.jumps[0].largest] == [(0, 2), (1, 4), (2, 1)]
    assert found.last.final == {"observation": [1, 1, 1]}


@pytest.mark.parametrize("lengths", [[1], [1, 1], [1, 400_000, 1]])
def test_episodes_of_one_step_have_no_difference(tmp_path, lengths):
    rows = sum(lengths)
    ends = np.isin(np.arange(rows) + 1, np.cumsum(lengths))
    np.savez(tmp_path / "a.npz", obs=np.zeros((rows, 8)), action=np.zeros(rows), dones=ends)

    found = check_files(tmp_path / "a.npz")

    assert (found.episodes, found.lengths["max"], found.last.steps) == (len(lengths), max(lengths), 1)
    assert found.jumps[0].median == (0 if rows > 2 else None)


def test_files_of_an_episode_each_are_one_dataset(rlds, tmp_path):
    for number, one in enumerate(episodes()):
        np.savez(tmp_path / f"ep{number}.npz", **one, extra=np.zeros((len(one["obs"]), 2)))

    described = rlds("init", tmp_path)
    found = rlds("init", tmp_path, "--check").out

    assert "which fields are extra?" in described.err
    assert "files\t3, the first ep0.npz\n" in found
    assert "lengths\t2 to 5, median 3\n" in found
    assert "episodes end by\tfile: each file is an episode; 1 episode in ep0.npz\n" in found
    assert "left out\textra\tfloat64\t[3, 2]\n" in found


@pytest.mark.skipif(os.name == "nt", reason="links need a right of their own")
def test_a_link_to_a_file_of_another_name_is_read_under_its_own_name(rlds, tmp_path):
    LAYOUTS["flags.npz"][1](tmp_path / "blob.npz")
    (tmp_path / "blob.npz").rename(tmp_path / "blob")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.npz").symlink_to(tmp_path / "blob")

    assert rlds("init", tmp_path / "runs" / "a.npz").out == f"{tmp_path / 'runs' / 'dataset.toml'}\n"
    assert rlds("init", tmp_path / "runs", "--check", "--json").json["episodes"] == 3


def test_info_shows_how_a_file_is_read_before_it_is_stored(rlds, tmp_path):
    LAYOUTS["lengths.npz"][1](tmp_path / "a.npz")

    ran = rlds("info", tmp_path / "a.npz")

    assert "episodes end by\tlengths: an array has the lengths, episode_lengths; 3 episodes in a.npz\n" in ran.out
    assert "observation\tobs\tfloat32\t[10, 3]\n" in ran.out
    assert describe_files(tmp_path / "a.npz").arrays == ("episode_lengths",)


def test_names_that_toml_must_quote_are_quoted(rlds, tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["obs/joint positions"], file["obs/größe"] = OBS, OBS
        file["action"], file["reward"], file["dones"] = ACTION, FLAT["reward"], DONE

    assert rlds("init", tmp_path / "a.h5").code == 0
    found = rlds("init", tmp_path, "--check", "--json").json

    assert [one["key"] for one in found["fields"]][:2] == ["observation.größe", "observation.joint positions"]


def test_the_documents_have_their_keys(rlds, tmp_path):
    LAYOUTS["flags.npz"][1](tmp_path / "a.npz")

    written = rlds("init", tmp_path, "--json").json
    checked = rlds("init", tmp_path, "--check", "--json").json

    head = {"schema_version", "command"}
    facts = {"read_as", "steps", "episodes", "lengths", "fields", "first_episode", "last_episode", "decisions", "jumps"}
    described = {"path", "description", "files", "first", "fields", "by", "arrays", "episodes", "left_out", "measured"}
    assert set(written) - head == {"file", "toml", "certain", "questions"}
    assert set(checked) - head == facts
    assert set(checked["read_as"]) == described


def test_the_description_of_a_table_is_one_of_the_folder_and_shows_several_columns(rlds, tmp_path):
    folder = tmp_path / "lab_trials"
    folder.mkdir()
    times = 1.7e9 + np.arange(4) / 20
    pd.DataFrame({"timestamp": times, "theta": 0.5, "omega": 0.25}).to_csv(folder / "run_2026.csv", index=False)

    text = rlds("init", folder / "run_2026.csv", "--print").out

    assert 'name = "lab_trials"' in text
    assert "first 1700000000, 1700000000.05, 1700000000.1\n" in text
    assert '# observation = ...    # which array is the observation? Several columns are ["theta", "omega"]' in text


def test_info_shows_the_size_of_files_of_this_machine_and_init_the_ways(rlds, tmp_path):
    npz(dones=DONE)(tmp_path / "a.npz")

    assert "unknown size" not in rlds("info", tmp_path).out
    assert "# one of file, flags, seams" in rlds("init", tmp_path, "--print").out
