"""OpenML samples and classes, compared with TorchRL's code on the same responses."""

from __future__ import annotations

import io
from functools import partial

import pytest
import torch
from raw.openml import SEVEN, answer, put

from datasets_rl import OpenMLExperienceReplay, downloading
from datasets_rl.settings import Settings
from datasets_rl.sources import get_source


@pytest.fixture
def theirs():
    return pytest.importorskip(
        "torchrl.data.datasets.openml", reason="pip install --no-deps torchrl hoptorch"
    ).OpenMLExperienceReplay


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", get_source("openml").ids())
def test_samples_and_classes_are_torchrls_to_the_last_bit(theirs, name, tmp_path, monkeypatch):
    for table in SEVEN.values():
        put(tmp_path / "answers", table)

    def opened(request, *_, **__):
        body = io.BytesIO(answer(tmp_path / "answers", request.full_url))
        body.info = dict
        return body

    monkeypatch.setattr("sklearn.datasets._openml.urlopen", opened)
    import sklearn.datasets

    # With pandas 3, scikit-learn's other parser does not accept categories whose names are numbers.
    plain = partial(sklearn.datasets.fetch_openml, cache=False, as_frame=True, parser="liac-arff")
    monkeypatch.setattr("sklearn.datasets.fetch_openml", plain)
    wanted = theirs._get_data(name)
    settings = Settings(home=tmp_path, progress=False)
    downloading.download(f"openml/{name}", root=tmp_path / "root", from_local=tmp_path / "answers", settings=settings)

    dataset = OpenMLExperienceReplay(name, root=tmp_path / "root", download=False)

    assert torch.equal(dataset["X"], wanted["X"])
    assert torch.equal(dataset["y"], wanted["y"])
    assert dataset.max_outcome_val == wanted["y"].max().item()
