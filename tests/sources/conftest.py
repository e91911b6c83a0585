"""Fixtures of several sources' tests: the folder of the raw files, and settings with a home of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from datasets_rl.settings import Settings


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder that does not exist yet, to which a test writes raw files."""
    return tmp_path / "tree"


@pytest.fixture
def settings(tmp_path) -> Settings:
    """Settings with a home that does not exist yet, without a progress bar."""
    return Settings(home=tmp_path / "home", progress=False)
