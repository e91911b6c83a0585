"""Fixtures of several sources' tests: the folder of the raw files, and settings with a home of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from datasets_rl import StoredDataset, download, verify
from datasets_rl.errors import ConversionError
from datasets_rl.settings import Settings


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder that does not exist yet, to which a test writes raw files."""
    return tmp_path / "tree"


@pytest.fixture
def settings(tmp_path) -> Settings:
    """Settings with a home that does not exist yet, without a progress bar."""
    return Settings(home=tmp_path / "home", progress=False)


@pytest.fixture
def stored(settings) -> Callable[[Path], StoredDataset]:
    """A function that converts a path, and checks the dataset deeply."""

    def convert(path: Path) -> StoredDataset:
        dataset = StoredDataset(download(str(path), settings=settings))
        assert verify(dataset.folder, deep=True, settings=settings).problems == ()
        return dataset

    return convert


@pytest.fixture
def refused(settings) -> Callable[[Path], str]:
    """A function that returns the problems and the hint of the error about a path."""

    def convert(path: Path) -> str:
        with pytest.raises(ConversionError) as caught:
            download(str(path), settings=settings)
        return f"{'; '.join(caught.value.problems)}; {caught.value.remedy}"

    return convert
