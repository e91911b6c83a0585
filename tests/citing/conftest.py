"""The demo dataset in a home of its own."""

from __future__ import annotations

import pytest

from datasets_rl import downloading
from datasets_rl.settings import Settings


@pytest.fixture(scope="session")
def stored(tmp_path_factory) -> Settings:
    """The settings of a home with demo/pendulum. Tests do not change the dataset."""
    settings = Settings(home=tmp_path_factory.mktemp("home"), progress=False)
    downloading.download("demo/pendulum", settings=settings)
    return settings
