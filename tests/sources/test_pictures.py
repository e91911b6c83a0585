"""Images by path in a column of a table: every pixel and every row is stored, or all problems are named."""

from __future__ import annotations

import numpy as np
import pytest
from layouts_pictures import LAYOUTS, LENGTHS, STEPS

from datasets_rl import download, verification
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home", progress=False, jobs=1)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_image_and_every_row_of_a_layout_is_stored(tmp_path, settings, name):
    layout = LAYOUTS[name]
    (tmp_path / "mine").mkdir()
    folder = layout.write(tmp_path / "mine")
    if layout.toml:
        (folder / "dataset.toml").write_text(layout.toml)

    stored = StoredDataset(download(str(folder), settings=settings))

    assert stored.episodes.lengths.tolist() == LENGTHS
    images = stored.column(tuple(layout.images.split(".")))
    np.testing.assert_array_equal(np.asarray(images[:]), np.stack([layout.decoded(row) for row in range(STEPS)]))
    np.testing.assert_allclose(stored.column(("action",)), layout.action, rtol=1e-6)
    assert verification.verify(stored.folder, deep=True, settings=settings).problems == ()
