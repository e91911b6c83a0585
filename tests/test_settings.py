"""Settings from environment variables; an invalid variable is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.settings import Settings


def test_an_empty_environment_gives_the_defaults():
    settings = Settings.from_env({})

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
