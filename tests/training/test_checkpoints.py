"""Checkpoints of training runs: plain files of torch whose damage is found, and of which the former one is kept."""

from __future__ import annotations

import random
import zipfile

import pytest
import torch

from datasets_rl.errors import FileTooLargeError, IntegrityError, InvalidArgumentError
from datasets_rl.training import latest_checkpoint, read_checkpoint, write_checkpoint

STATE = {"settings": {"lr": 0.1}, "networks": {"weight": torch.arange(12.0).reshape(3, 4)}, "step": 7}


def test_a_checkpoint_is_a_file_that_torch_reads(tmp_path):
    path = tmp_path / "checkpoint.pt"
    write_checkpoint(path, STATE)

    loaded = torch.load(path, weights_only=True)
    assert torch.equal(loaded["networks"]["weight"], STATE["networks"]["weight"])
    assert torch.equal(read_checkpoint(path)["networks"]["weight"], STATE["networks"]["weight"])
    assert zipfile.ZipFile(path).testzip() is None
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_each_flipped_bit_of_a_checkpoint_is_found_and_the_former_one_is_named(tmp_path):
    path, before = tmp_path / "checkpoint.pt", tmp_path / "checkpoint.previous.pt"
    for step in (1, 2):
        write_checkpoint(path, {**STATE, "step": step}, previous=before)
    content = path.read_bytes()
    draw = random.Random(0)
    positions = [0, len(content) - 1, len(content) - 72, *(draw.randrange(len(content)) for _ in range(100))]
    for position in positions:
        damaged = bytearray(content)
        damaged[position] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(
            IntegrityError, match=r"the content does not match the SHA-256\ndelete the file, .*previous\.pt"
        ):
            read_checkpoint(path)

    path.unlink()
    assert read_checkpoint(latest_checkpoint(tmp_path))["step"] == 1


@pytest.mark.parametrize("length", [0, 1, 70, 500])
def test_a_cut_checkpoint_is_damaged(tmp_path, length):
    path = tmp_path / "checkpoint.pt"
    write_checkpoint(path, STATE)
    path.write_bytes(path.read_bytes()[:length])

    with pytest.raises(IntegrityError, match="the file is damaged"):
        read_checkpoint(path)


def test_a_file_of_something_else_is_no_checkpoint(tmp_path):
    write_checkpoint(tmp_path / "other.pt", {"weight": torch.zeros(1)})

    with pytest.raises(InvalidArgumentError, match=r"other\.pt is not a checkpoint of a training program"):
        read_checkpoint(tmp_path / "other.pt")


@pytest.mark.skipif(not hasattr(__import__("os"), "mkfifo"), reason="RLIMIT_FSIZE")
def test_a_file_that_may_not_grow_leaves_the_former_checkpoint(tmp_path):
    import resource
    import signal

    path = tmp_path / "checkpoint.pt"
    write_checkpoint(path, STATE)
    handler, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        with pytest.raises(FileTooLargeError, match="run it again to continue"):
            write_checkpoint(path, {**STATE, "more": torch.zeros(100_000)}, previous=tmp_path / "previous.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)

    assert read_checkpoint(path)["step"] == 7
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint.pt"]
