"""What a dataset takes on disk, against TorchRL's memory-mapped TensorDict of the same file."""

import bench_data
import pytest


@pytest.mark.usefixtures("torchrl_data")
@pytest.mark.parametrize("kind", ["raw_file", "plain_file"])
def test_a_dataset_takes_less_disk_than_torchrls(kind, request, tmp_path, expect_exactly):
    raw = request.getfixturevalue(kind)

    ours = bench_data.size(bench_data.converted(raw, tmp_path / "ours"))
    theirs = bench_data.size(bench_data.torchrl_dataset(raw, tmp_path / "theirs").data_path)

    expect_exactly(f"disk of {kind}, of TorchRL's", ours / theirs, at_most=0.62)
