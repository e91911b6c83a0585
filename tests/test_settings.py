"""Settings from environment variables; an invalid variable is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.settings import Settings, config_files, project_file, setting_values, user_file


def test_an_empty_environment_gives_the_defaults():
    settings = Settings.from_env({}, files=())

    assert (settings.offline, settings.timeout, settings.retries, settings.jobs) == (False, 30.0, 5, 4)
    assert (settings.min_rate, settings.image_cache) == (100, 256)
    assert settings.progress
    assert dict(settings.mirrors) == {}
    assert settings.home.is_absolute()


def test_every_variable_is_read():
    settings = Settings.from_env(
        {
            "RLDS_HOME": "/data",
            "RLDS_OFFLINE": "yes",
            "RLDS_TIMEOUT": "2.5",
            "RLDS_MIN_RATE": "0",
            "RLDS_MAX_RETRIES": "0",
            "RLDS_JOBS": "1",
            "RLDS_IMAGE_CACHE": "0",
            "RLDS_MIRRORS": "d4rl=https://lab/d4rl, file:///mnt/d4rl; minari=https://lab/minari;",
            "RLDS_NO_PROGRESS": "1",
        }
    )

    assert settings.home == Path("/data")
    assert (settings.offline, settings.timeout, settings.retries, settings.jobs) == (True, 2.5, 0, 1)
    assert (settings.min_rate, settings.image_cache) == (0, 0)
    assert settings.mirrors["d4rl"] == ("https://lab/d4rl", "file:///mnt/d4rl")
    assert settings.mirrors["minari"] == ("https://lab/minari",)
    assert not settings.progress


def test_a_relative_home_does_not_move_with_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert Settings.from_env({"RLDS_HOME": "data"}).home == tmp_path / "data"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RLDS_OFFLINE", "maybe"),
        ("RLDS_TIMEOUT", "0"),
        ("RLDS_TIMEOUT", "nan"),
        ("RLDS_TIMEOUT", "inf"),
        ("RLDS_TIMEOUT", "soon"),
        ("RLDS_MIN_RATE", "-1"),
        ("RLDS_MAX_RETRIES", "-1"),
        ("RLDS_MAX_RETRIES", "1.5"),
        ("RLDS_JOBS", "0"),
        ("RLDS_JOBS", "0.5"),
        ("RLDS_JOBS", "inf"),
        ("RLDS_JOBS", "9" * 5000),
        ("RLDS_MIRRORS", "https://lab"),
        ("RLDS_MIRRORS", "d4rl="),
        ("RLDS_MIRRORS", "=https://lab"),
        ("RLDS_MIRRORS", "d4rl=lab"),
    ],
    ids=lambda value: value[:20],
)
def test_a_value_of_another_type_is_named(name, value):
    with pytest.raises(InvalidArgumentError, match=name):
        Settings.from_env({name: value})


def test_all_invalid_variables_are_named_at_once():
    with pytest.raises(InvalidArgumentError) as caught:
        Settings.from_env({"RLDS_JOBS": "x", "RLDS_TIMEOUT": "x", "RLDS_OFFLINE": "x", "RLDS_MIRRORS": "x"})
    for name in ("RLDS_JOBS", "RLDS_TIMEOUT", "RLDS_OFFLINE", "RLDS_MIRRORS"):
        assert name in str(caught.value)


def test_a_variable_precedes_the_project_file_and_that_precedes_the_user_file(tmp_path):
    project, user = tmp_path / "rlds.toml", tmp_path / "config.toml"
    user.write_text('jobs = 1\nretries = 1\ntimeout = 1\n[mirrors]\nd4rl = ["https://user/"]\n')
    project.write_text("jobs = 2\nretries = 2\n")

    values = setting_values({"RLDS_JOBS": "3"}, [project, user])
    assert {key: (values[key].value, values[key].origin) for key in ("jobs", "retries", "timeout", "mirrors")} == {
        "jobs": (3, "RLDS_JOBS"),
        "retries": (2, f"{project}:2"),
        "timeout": (1.0, f"{user}:3"),
        "mirrors": ({"d4rl": ("https://user/",)}, f"{user}:4"),
    }
    assert values["offline"].origin == "default"


def test_every_setting_can_be_in_a_file(tmp_path):
    file = tmp_path / "rlds.toml"
    file.write_text(
        'home = "data"\noffline = true\ntimeout = 2.5\nmin_rate = 0\nretries = 0\njobs = 1\nimage_cache = 0\n'
        'progress = false\nmirrors.d4rl = ["https://lab/d4rl", "file:///mnt"]\n'
    )
    settings = Settings.from_env({}, [file])

    assert settings.home == tmp_path / "data"
    assert (settings.offline, settings.timeout, settings.retries, settings.jobs) == (True, 2.5, 0, 1)
    assert (settings.min_rate, settings.image_cache, settings.progress) == (0, 0, False)
    assert dict(settings.mirrors) == {"d4rl": ("https://lab/d4rl", "file:///mnt")}


def test_all_problems_of_all_files_and_variables_are_named_with_their_lines(tmp_path):
    project, user = tmp_path / "rlds.toml", tmp_path / "config.toml"
    project.write_text('# ours\njbos = 3\njobs = 0\noffline = "perhaps"\n\n[mirrors]\nd4rl = ["lab"]\n"my lab" = 3\n')
    user.write_text("home = [\n")

    with pytest.raises(InvalidArgumentError) as caught:
        setting_values({"RLDS_TIMEOUT": "x"}, [project, user])
    message = str(caught.value)
    assert f"{project}:2: there is no setting 'jbos' (did you mean jobs?)" in message
    assert f"{project}:3: jobs is 0, expected an integer of at least 1" in message
    assert f"{project}:4: offline is 'perhaps'" in message
    assert f"{project}:7: mirrors.d4rl is ['lab']" in message
    assert f"{project}:8: mirrors.my lab is 3" in message
    assert f"{user}: the file is not valid TOML" in message
    assert "RLDS_TIMEOUT is 'x'" in message


@pytest.mark.parametrize(
    "text", ["jobs = true", "timeout = true", "home = 3", 'home = ""', "mirrors = 3", "progress = []"]
)
def test_values_of_other_types_are_refused(text, tmp_path):
    (tmp_path / "rlds.toml").write_text(text)

    with pytest.raises(InvalidArgumentError, match=r"rlds\.toml:1"):
        Settings.from_env({}, [tmp_path / "rlds.toml"])


def test_the_project_file_is_in_the_root_of_the_project_and_not_above(tmp_path):
    (tmp_path / "rlds.toml").write_text("jobs = 2\n")
    inner = tmp_path / "project" / "scripts" / "deep"
    inner.mkdir(parents=True)

    assert project_file(inner) == tmp_path / "rlds.toml"
    (tmp_path / "project" / "pyproject.toml").touch()
    assert project_file(inner) == tmp_path / "project" / "rlds.toml"


def test_outside_of_projects_only_the_folder_itself_counts(tmp_path):
    assert project_file(tmp_path) == tmp_path / "rlds.toml"


def test_files_that_exist_are_read_and_rlds_config_names_the_user_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    user = tmp_path / "mine.toml"
    (tmp_path / "rlds.toml").write_text("jobs = 2\n")
    assert config_files({"RLDS_CONFIG": str(user)}) == [tmp_path / "rlds.toml"]
    user.write_text("retries = 9\n")

    env = {"RLDS_CONFIG": str(user)}
    assert config_files(env) == [tmp_path / "rlds.toml", user]
    assert (Settings.from_env(env).jobs, Settings.from_env(env).retries) == (2, 9)


def test_the_user_file_is_in_the_folder_of_the_platform():
    assert user_file({}).parts[-2:] == ("datasets-rl", "config.toml")
