"""The command ``rlds append``."""


def test_append_creates_a_dataset_and_adds_to_it(rlds, stored, home):
    first = rlds("append", "local/mine", "demo/pendulum")
    assert (first.code, first.out) == (0, f"{home / 'local' / 'mine'}\n")
    assert "local/mine: 75 episodes added, 15,000 steps in 75 episodes" in first.err

    again = rlds("append", "local/mine", stored, "--again", "--json").json
    assert (again["added"], again["episodes"], again["steps"]) == (75, 150, 30_000)
    assert rlds("append", "local/mine").err == "local/mine: 0 episodes added, 30,000 steps in 150 episodes\n"
    assert rlds("verify", "local/mine", "--deep").code == 0


def test_append_refuses_datasets_of_other_sources_and_names_what_is_missing(rlds, stored):
    refused = rlds("append", "demo/pendulum", stored)
    assert (refused.code, refused.out) == (2, "")
    assert "expected an id local/NAME" in refused.err

    missing = rlds("append", "local/mine", "local/other")
    assert (missing.code, missing.out) == (3, "")
    assert "why: it has no data\n" in missing.err
    assert "rlds append local/other ... adds" in missing.err
    assert "rlds download local/other --from-local PATH converts files" in missing.err
    assert rlds("append", "local/mine").code == 3


def test_a_name_of_an_own_dataset_that_is_not_known_names_the_nearest_one(rlds, stored):
    assert rlds("append", "local/hopper", stored).code == 0

    for words in (["sample", "local/hoper"], ["append", "local/mine", "local/hoper"]):
        assert "why: it has no data, unlike local/hopper\n" in rlds(*words).err
    assert "rlds download local/hoper\n" not in rlds("info", "local/hoper").out


def test_nothing_is_added_if_one_of_the_datasets_is_missing(rlds, stored):
    """The corrected command would add the others a second time."""
    ran = rlds("append", "local/mine", stored, "local/other", "--json")

    assert (ran.code, ran.json["added"], ran.json["folder"]) == (1, 0, None)
    assert rlds("append", "local/mine", stored, "--json").json["episodes"] == 75


def test_a_file_is_not_the_folder_of_a_dataset(rlds, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")

    for words in (["append", "local/mine"], ["verify"]):
        ran = rlds(*words, tmp_path / "notes.txt")

        assert ran.code == 3
        assert "why: the path is a file, expected the folder of a dataset\n" in ran.err
        assert "store the episodes with EpisodeWriter, see docs/recording.md#files-of-other-packages" in ran.err
