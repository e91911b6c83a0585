"""``rlds sample`` and ``rlds score``."""

from __future__ import annotations

import time

import pytest
from stored_data import trajectory, write_dataset

from datasets_rl.cli.options import Shell


@pytest.mark.usefixtures("stored")
def test_a_sample_shows_every_key_with_its_shape_and_the_time(rlds):
    ran = rlds("sample", "demo/pendulum", "-n", 8, "--json")

    keys = {one["key"]: one for one in ran.json["keys"]}
    assert keys["observation"]["shape"] == keys["next.observation"]["shape"] == [8, 3]
    assert keys["next.reward"]["shape"] == [8, 1]
    assert keys["next.done"]["dtype"] == "bool"
    assert len(keys["action"]["values"]) == 4
    assert 0 < ran.json["timing"]["sample_s"] < 1


@pytest.mark.usefixtures("stored")
def test_a_sample_is_printed_as_a_page(rlds):
    out = rlds("sample", "demo/pendulum").out

    assert out.startswith("demo/pendulum, 4 transitions\n")
    assert "transitions a second" in out


@pytest.mark.usefixtures("stored")
def test_a_sample_has_the_chosen_keys_and_the_same_seed_draws_it_again(rlds):
    words = ("sample", "demo/pendulum", "--keys", "observation,next.reward", "--json")
    first, second, other = (rlds(*words, "--seed", seed).json["keys"] for seed in (1, 1, 2))

    assert {one["key"] for one in first} == {"index", "observation", "next.reward"}
    assert first == second != other
    assert "no key 'speed'" in rlds("sample", "demo/pendulum", "-k", "speed").err


@pytest.mark.usefixtures("stored")
def test_a_sample_has_windows_by_seconds(rlds, tmp_path):
    words = ("sample", "demo/pendulum", "-n", 8, "--delta-timestamps", '{"action": [-0.1, 0, 0.2]}')
    keys = {one["key"]: one for one in rlds(*words, "--fps", 10, "--json").json["keys"]}
    assert keys["action"]["shape"] == [8, 3, 1]
    assert keys["action_is_pad"]["shape"] == [8, 3]

    assert "does not state its steps per second" in (err := rlds(*words).err)
    assert "pass --fps NUMBER" in err
    assert "expected JSON" in rlds(*words[:-1], "action=0").err
    (tmp_path / "mix.toml").write_text('[[member]]\ndataset = "demo/pendulum"\n')
    assert "is a mixture" in rlds("sample", tmp_path / "mix.toml", *words[4:]).err


def test_a_folder_can_be_sampled(rlds, stored):
    assert "observation\n" in rlds("sample", stored, "-q").out


def test_sample_does_not_download_a_missing_dataset(rlds, home):
    ran = rlds("sample", "demo/pendulum")

    assert ran.code == 3
    assert "rlds download demo/pendulum" in ran.err
    assert not home.exists()


def test_the_published_example_of_d4rl(rlds):
    """REF_MIN_SCORE -20.272305 and REF_MAX_SCORE 3234.3 of hopper, from d4rl/infos.py."""
    ran = rlds("score", "d4rl/hopper-medium-v2", -20.272305, 3234.3, 1607.0138475, "-q")

    assert [float(line) for line in ran.out.split()] == pytest.approx([0, 1, 0.5])


def test_negative_returns_are_parsed_as_numbers_not_options(rlds):
    ran = rlds("score", "demo/pendulum", "-1205.62", "-1.6713e2", "--json")

    assert ran.json["scores"] == pytest.approx([0, 1])
    assert ran.json["mean"] == pytest.approx(0.5)


def test_a_score_names_its_reference_returns(rlds):
    ran = rlds("score", "d4rl/hopper-medium-v2", 1000, 2000)

    assert [line.split("\t")[0] for line in ran.out.splitlines()] == ["1000", "2000"]
    assert "infos.py" in ran.err


def test_a_dataset_without_reference_scores_has_no_score(rlds):
    from datasets_rl import sources

    origin = sources.get_source("d4rl")
    without = [name for name in origin.ids() if origin.entry(name).score is None]
    for name in without[:1]:
        assert rlds("score", f"d4rl/{name}", 1).code == 2


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("size", [10**15, 10**30])
def test_a_batch_that_exceeds_memory_is_wrong_usage(rlds, size):
    ran = rlds("sample", "demo/pendulum", "-n", size)

    assert ran.code == 2
    assert "take a smaller --batch-size N" in ran.err


@pytest.mark.usefixtures("stored")
def test_timing_ends_after_the_given_time(rlds, monkeypatch):
    from datasets_rl.cli.commands import sample

    monkeypatch.setattr(sample, "_SECONDS", 0)

    assert rlds("sample", "demo/pendulum", "--json").json["timing"]["rounds"] == 1


def test_a_folder_has_its_own_reference_scores(rlds, stored):
    """The reference scores of the demo are also in its manifest."""
    ran = rlds("score", stored, "-1205.62", "-1.6713e2", "--json")

    assert ran.json["scores"] == pytest.approx([0, 1])
    assert (
        rlds("score", "minari/mujoco/hopper/expert-v0", 1)
        .err.splitlines()[-1]
        .endswith("rlds download minari/mujoco/hopper/expert-v0")
    )


@pytest.mark.usefixtures("stored")
def test_score_and_download_report_preprocessed_data(rlds):
    before = [rlds("score", "demo/pendulum", "-150").err, rlds("download", "demo/pendulum").err]
    rlds("preprocess", "demo/pendulum", "-t", "reward_scaling:scale=0.1", "--in-place")
    stop = [rlds("score", "demo/pendulum", "-150").err, rlds("download", "demo/pendulum").err]

    assert not any("preprocessed" in said for said in before)
    assert "the original rewards" in stop[0]
    assert "--force makes it anew" in stop[1]
    assert rlds("download", "demo/pendulum", "--json").json["datasets"][0]["history"]


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.usefixtures("terminal")
def test_a_slow_import_of_pytorch_is_named_on_a_terminal(capsys, monkeypatch, quiet):
    monkeypatch.setattr("datasets_rl.progress.SILENT", 0.01)
    shell = Shell(["sample"])
    shell.printer.quiet = quiet
    with monkeypatch.context() as slow:
        slow.setattr("importlib.import_module", lambda _: time.sleep(0.2))
        shell.import_torch()

    assert capsys.readouterr().err == ("" if quiet else "importing PyTorch\n")


@pytest.mark.usefixtures("stored")
def test_unknown_final_observations_are_one_line_and_not_a_python_warning(rlds, tmp_path):
    write_dataset(tmp_path / "toy", [trajectory(3, known=False), trajectory(2, seed=1)])
    ran = rlds("sample", tmp_path / "toy")
    shown = [line for line in ran.out.splitlines() if "1 of 2 episodes" in line]

    assert ran.err == ""
    assert len(shown) == 1
    assert "next.final_known is False" in shown[0]
    assert rlds("sample", tmp_path / "toy", "--json").json["final_unknown"] == {"toy/data": 1}
    assert rlds("sample", "demo/pendulum", "--json").json["final_unknown"] == {}
    assert "final observation unknown" not in rlds("sample", "demo/pendulum").out


def test_a_mixture_names_the_members_that_lack_final_observations(rlds, tmp_path):
    write_dataset(tmp_path / "lacks", [trajectory(3, known=False)], id="toy/lacks")
    write_dataset(tmp_path / "knows", [trajectory(3)], id="toy/knows")
    (tmp_path / "mix.toml").write_text('[[member]]\ndataset = "lacks"\n[[member]]\ndataset = "knows"\n')
    ran = rlds("sample", tmp_path / "mix.toml", "--json")

    assert (ran.code, ran.err) == (0, "")
    assert ran.json["final_unknown"] == {"toy/lacks": 1}
    assert "next.final_known" in [one["key"] for one in ran.json["keys"]]
