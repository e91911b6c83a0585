"""`as_lerobot` of a dataset of each source, compared with LeRobot's rules over an export."""

from __future__ import annotations

import numpy as np
import pytest
from lerobot_items import FPS, ExportedItems, check_equal
from raw.case import cases_of_sources

from datasets_rl import Selection, downloading, load
from datasets_rl.settings import Settings

CASES = [*cases_of_sources()]
FRAMES = 12


@pytest.mark.first(2)
@pytest.mark.parametrize("case", [case for _, _, case in CASES], ids=[f"{name} {number}" for name, number, _ in CASES])
def test_the_frames_of_a_source_are_those_of_an_export(tmp_path, case):
    (tmp_path / "tree").mkdir()
    case.write(tmp_path / "tree")
    settings = Settings(home=tmp_path / "home", progress=False, jobs=1, retries=0)
    selection = Selection(options=dict(case.options))
    dataset = load(
        str(downloading.download(case.id, from_local=tmp_path / "tree", settings=settings, selection=selection))
    )
    exported = ExportedItems(dataset.export("lerobot", tmp_path / "out", lossy=True, fps=FPS))

    seconds = {"action": [-0.1, 0.0, 0.2]} if "action" in exported.features else None
    frames = dataset.as_lerobot(seconds, fps=FPS)

    assert frames.features.keys() == exported.features.keys()
    for frame, item in enumerate(frames.__getitems__(range(min(FRAMES, len(exported.rows))))):
        expected = exported.item(frame, seconds)
        check_equal({name: item[name] for name in expected}, expected)
    for name, one in exported.stats.items():
        for statistic, numbers in one.items():
            found = frames.meta.stats[name][statistic]
            assert np.allclose(found, np.array(numbers, float), rtol=1e-6, equal_nan=True), (name, statistic)
