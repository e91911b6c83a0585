"""What a dataset takes on disk, against TorchRL's memory-mapped TensorDict of the same file."""

import pytest
from bench_data import converted, torchrl_dataset

GOAL = 0.62


def size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", ["raw_file", "plain_file"])
def test_a_dataset_takes_less_disk_than_torchrls(kind, request, tmp_path, show):
    raw = request.getfixturevalue(kind)

    ours = size(converted(raw, tmp_path / "ours"))
    theirs = size(torchrl_dataset(raw, tmp_path / "theirs").data_path)

    show(f"\n{kind}: {ours / 1e6:.1f} MB against {theirs / 1e6:.1f} MB: {ours / theirs:.3f}")
    assert ours / theirs <= GOAL
