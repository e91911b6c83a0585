"""Episodes with images that are PNG in a dataset and pixels in another are exact copies."""

from __future__ import annotations

import numpy as np
import pytest
from stored_data import Trajectory, write_dataset

from datasets_rl.format.schema import END_COLUMNS, Column
from datasets_rl.identifying.identify import Search
from datasets_rl.identifying.index import make_index
from datasets_rl.identifying.known import KnownDataset
from datasets_rl.ted.episode import EncodedImages
from datasets_rl.testing.exports import encoded

CAMERA, SHAPE, STEPS = ("observation", "camera"), (8, 10, 3), 30


def store(folder, form, change=()):
    """Store three episodes with images in a form. In an episode of `change`, one pixel of the last step is another one."""
    trajectories = []
    for number in range(3):
        generator = np.random.default_rng(number)
        images = generator.integers(0, 256, (STEPS + 1, *SHAPE), np.uint8)
        steps = {
            ("action",): generator.normal(size=(STEPS, 2)).astype(np.float32),
            ("next", "reward"): np.zeros((STEPS, 1), np.float32),
            **{column.key: np.arange(STEPS)[:, None] == STEPS - 1 for column in END_COLUMNS},
        }
        if number in change:
            images[STEPS - 1, 0, 0, 0] ^= 1
        stored = images if form == "raw" else EncodedImages([encoded(image, "PNG") for image in images])
        trajectories.append(Trajectory(steps, {CAMERA: stored}))
    columns = [
        Column(CAMERA, np.dtype(np.uint8), SHAPE, shared=True, form=form),
        Column(("action",), np.dtype(np.float32), (2,)),
        Column(("next", "reward"), np.dtype(np.float32), (1,)),
        *END_COLUMNS,
    ]
    return write_dataset(folder, trajectories, columns)


def counts(of, among):
    known = [KnownDataset("other", among.folder)]
    (match,) = Search(of, "query", known, make_index(known)).run(near=True).matches
    return match.exact, match.partial, match.near, match.different


@pytest.mark.parametrize("forms", [("raw", "encoded"), ("encoded", "raw")])
def test_png_of_the_same_pixels_is_an_exact_copy_and_png_of_others_is_not(tmp_path, forms):
    mine, theirs = (store(tmp_path / form, form, change=(1,) * (form == "raw")) for form in forms)

    assert counts(mine, theirs) == (2, 1, 0, ("observation.camera",))
