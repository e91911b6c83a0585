"""``rlds describe``: distributions, and the rows of an episode."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from stored_data import trajectory, write_dataset

from datasets_rl.store import version_folder

DEMO = "demo/pendulum"


@pytest.fixture
def toy(tmp_path):
    """A dataset with a NaN, two ways to end, and an unknown final observation."""
    broken = trajectory(6, seed=1, terminated=True)
    actions = np.array(broken.steps["action",])
    actions[2, 1] = np.nan
    episodes = [
        trajectory(12),
        replace(broken, steps={**broken.steps, ("action",): actions}),
        trajectory(30, seed=2, known=False),
    ]
    return write_dataset(tmp_path / "toy", episodes).folder


@pytest.mark.usefixtures("stored")
class TestStats:
    """``rlds describe ID``."""

    def test_the_numbers_are_those_of_the_files(self, rlds, stored):
        rows, episodes = np.load(version_folder(stored) / "rows.npy"), np.load(version_folder(stored) / "episodes.npy")

        document = rlds("describe", DEMO, "--json", "--bins", 10).json

        assert document["returns"]["mean"] == pytest.approx(episodes["return"].mean())
        fields = {field["key"]: field for field in document["fields"]}
        reward = fields["next.reward"]["elements"][0]
        assert reward["min"] == rows["next.reward"].min()
        assert reward["histogram"]["counts"] == np.histogram(rows["next.reward"], 10)[0].tolist()
        assert [one["max"] for one in fields["observation"]["elements"]] == rows["observation"].max(0).tolist()

    @pytest.mark.parametrize("width", [80, 40])
    @pytest.mark.usefixtures("terminal")
    def test_histograms_fit_the_terminal(self, rlds, monkeypatch, width):
        monkeypatch.setenv("COLUMNS", str(width))

        lines = rlds("describe", DEMO, "--no-color").out.splitlines()

        plain = [line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in lines]
        assert max(map(len, plain)) == width
        assert "no episode is terminated: all are" in " ".join(plain)
        assert any("██" in line for line in plain)
        assert any("observation[2]" in line for line in plain)

    def test_a_pipe_gets_labels_and_counts(self, rlds):
        out = rlds("describe", DEMO, "--keys", "action").out

        bars = [line.split("\t") for line in out.partition("histogram of returns\n")[2].split("\n\n")[0].splitlines()]
        assert sum(int(count) for _, count in bars) == 75
        assert "action\t" in out
        assert "observation[0]" not in out

    def test_issues_and_ends_are_shown(self, rlds, toy):
        out = rlds("describe", toy).out

        assert "action has 1 value that is NaN, in action[1]" in out
        assert "the final observation of 1 of 3 episodes is unknown" in out
        assert "terminal state\t1\t" in out
        assert "time-out\t2\t" in out
        assert "correlation of time-outs with\nreturn\t+0.7" in out
        assert rlds("describe", toy, "--quiet").out.splitlines()[0] == "action has 1 value that is NaN, in action[1]"

    def test_a_mixture_shows_its_datasets(self, rlds, stored, toy, tmp_path):
        mixture = tmp_path / "mix.toml"
        mixture.write_text(f'[[member]]\ndataset = "{stored}"\n[[member]]\ndataset = "{stored}"\n')

        document = rlds("describe", mixture, "--json", "-k", "action").json

        assert [one["id"] for one in document["datasets"]] == [DEMO, DEMO]
        del toy

    @pytest.mark.parametrize(
        ("words", "code", "text"),
        [
            (["d4rl/hopper-medium-v2"], 3, "rlds download d4rl/hopper-medium-v2"),
            ([DEMO, "--keys", "reward"], 2, "next.reward"),
            ([DEMO, "--bins", "1"], 2, "--bins"),
            (["demo/pendulun"], 3, "did you mean demo/pendulum"),
        ],
    )
    def test_a_wrong_word_is_explained(self, rlds, words, code, text):
        ran = rlds("describe", *words)

        assert (ran.out, text in ran.err) == ("", True), ran.err
        assert ran.code == code


@pytest.mark.usefixtures("stored")
class TestInspect:
    """``rlds describe ID --episode N``."""

    def test_rows_are_shown_one_a_line_and_the_final_observation_last(self, rlds, stored):
        rows, final = np.load(version_folder(stored) / "rows.npy"), np.load(version_folder(stored) / "final.npy")

        ran = rlds("describe", DEMO, "--episode", 3, "--rows", ":", "--keys", "observation")

        lines = [line.split("\t") for line in ran.out.partition("rows\n")[2].splitlines()]
        assert lines[0] == ["t", "end", "observation"]
        assert [line[0] for line in lines[1:]] == [*map(str, range(201))]
        assert lines[1][2] == f"[{' '.join(f'{x:.4g}' for x in rows['observation'][600].tolist())}]"
        assert lines[-2][1] == "truncated"
        assert lines[-1][1:] == ["final", f"[{' '.join(f'{x:.4g}' for x in final['observation'][3].tolist())}]"]

    def test_a_long_episode_shows_both_ends(self, rlds):
        lines = rlds("describe", DEMO, "-e", 0).out.partition("rows\n")[2].splitlines()[1:]

        assert [line.split("\t")[0] for line in lines] == [*"01234", "...", *map(str, range(195, 201))]

    @pytest.mark.parametrize("length", [1, 4, 5, 6, 10, 11])
    def test_a_short_episode_ends_with_its_final_observation(self, rlds, tmp_path, length):
        episode = trajectory(length)
        folder = write_dataset(tmp_path / "short", [episode]).folder

        document = rlds("describe", folder, "-e", 0, "--json").json

        assert [row["t"] for row in document["rows"]] == [*range(min(5, length)), *range(max(5, length - 5), length)]
        assert document["final"]["observation"] == episode.states["observation",][-1].tolist()

    def test_json_has_all_numbers(self, rlds, stored):
        rows = np.load(version_folder(stored) / "rows.npy")[600:605]

        document = rlds("describe", DEMO, "-e", 3, "--rows", "0:5", "--json").json

        assert (document["length"], document["start"], document["final"]) == (200, 600, None)
        assert [row["row"] for row in document["rows"]] == [600, 601, 602, 603, 604]
        assert [row["observation"] for row in document["rows"]] == rows["observation"].tolist()
        assert [row["info.policy"] for row in document["rows"]] == rows["info.policy"].tolist()

    def test_an_unknown_final_observation_is_named(self, rlds, toy):
        assert rlds("describe", toy, "-e", -1).out.splitlines()[-1].split("\t")[:2] == ["30", "final"]
        assert "unknown" in rlds("describe", toy, "-e", -1).out.splitlines()[-1]
        assert json.loads(rlds("describe", toy, "-e", "-1", "--json").out)["final_known"] is False

    @pytest.mark.parametrize("width", [80, 40])
    @pytest.mark.usefixtures("terminal")
    def test_every_row_is_a_line_of_the_terminal(self, rlds, monkeypatch, width):
        monkeypatch.setenv("COLUMNS", str(width))

        lines = rlds("describe", DEMO, "--rows", "0:3", "--no-color").out.splitlines()

        rows = lines[lines.index("rows") + 2 :][:3]
        assert [line.split()[0] for line in rows] == ["0", "1", "2"]
        assert "no room for" in lines[lines.index("rows") + 5]
        assert max(map(len, lines)) <= width

    @pytest.mark.parametrize(
        ("words", "code", "text"),
        [
            (["--episode", "75"], 2, "from -75 to 74"),
            (["--rows", "a"], 2, "START:STOP"),
            (["--rows", "0:5:2"], 2, "START:STOP"),
            (["--rows", "5:2"], 2, "expected some of 0:200"),
            (["--keys", "pixels"], 2, "observation"),
        ],
    )
    def test_a_wrong_word_is_explained(self, rlds, words, code, text):
        ran = rlds("describe", DEMO, "-e", 0, *words)

        assert text in ran.err
        assert (ran.out, ran.code) == ("", code)

    def test_a_mixture_is_refused(self, rlds, tmp_path):
        (tmp_path / "mix.toml").write_text("")

        assert (
            "is a mixture\n  why: expected one of its datasets" in rlds("describe", tmp_path / "mix.toml", "-e", 0).err
        )


def test_info_shows_statistics_and_spaces(rlds, toy):
    out = rlds("info", toy).out

    assert "field\tmean\tstd\tmin\tmax\tq50\tq01\tq99" in out
    assert "action[1]\t1." in out
    assert "return\t" in out
