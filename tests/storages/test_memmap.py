"""The memory-mapped storage: its folder, and processes that share it."""

import copy
import gc
import json
import multiprocessing
import os
import pickle
import shutil
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict

from datasets_rl.errors import DiskFullError, InvalidArgumentError
from datasets_rl.storages import LazyMemmapStorage, LazyTensorStorage


def data(steps):
    steps = torch.as_tensor(steps)
    return TensorDict({"a": steps.float(), "image": steps[..., None].expand(*steps.shape, 5000).byte()}, steps.shape)


def write_elsewhere(*storages):
    """Read, write in place, and extend by 10 steps; runs in another process."""
    torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork
    for storage in storages:
        if storage.initialized:
            storage.get(slice(None))["a"][0] = 77
        first = storage.write_count
        storage.set(torch.arange(first, first + 10), data(torch.arange(first, first + 10)))


def run(method, *storages):
    process = multiprocessing.get_context(method).Process(target=write_elsewhere, args=storages)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_a_copy_has_separate_files_and_steps():
    """A pickle for another process shares them, but a copy must not change with the original."""
    for held in (0, 3):
        storage = LazyMemmapStorage(10)
        if held:
            storage.set(range(held), data(torch.arange(held)))
        other = copy.deepcopy(storage)
        other.set(range(held, held + 2), data(torch.arange(2)))

        assert (storage.filled_count, other.filled_count) == (held, held + 2)
        assert storage.scratch_dir != other.scratch_dir
        if held:
            assert (other.get(slice(0, held)) == storage.get(slice(None))).all()


class TestFolder:
    def test_records_are_in_one_file_and_each_wide_leaf_in_its_own(self, tmp_path):
        storage = LazyMemmapStorage(100, scratch_dir=tmp_path)
        storage.set(range(3), data(torch.arange(3)))

        assert {path.name for path in tmp_path.iterdir()} == {"storage.json", "counts.bin", "rows.0.bin", "rows.1.bin"}
        assert (tmp_path / "rows.0.bin").stat().st_size == 100 * 8
        assert (tmp_path / "rows.1.bin").stat().st_size == 100 * 5000

    def test_written_values_are_in_the_files(self, tmp_path):
        storage = LazyMemmapStorage(100, scratch_dir=tmp_path)
        storage.set(range(3), data(torch.arange(3)))

        rows = np.fromfile(tmp_path / "rows.0.bin", np.float32).reshape(100, 2)
        assert rows[:3, 0].tolist() == [0, 1, 2]

    def test_the_files_of_an_earlier_storage_are_refused(self, tmp_path):
        LazyMemmapStorage(100, scratch_dir=tmp_path).set(0, data(1))
        with pytest.raises(InvalidArgumentError, match="contains the files of an earlier storage") as caught:
            LazyMemmapStorage(100, scratch_dir=tmp_path)

        assert "existsok=True" in caught.value.hint

    def test_other_files_in_the_folder_do_not_matter(self, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        LazyMemmapStorage(100, scratch_dir=tmp_path).set(0, data(1))

        assert (tmp_path / "notes.txt").read_text() == "mine"

    def test_an_earlier_storage_is_continued_on_request(self, tmp_path):
        LazyMemmapStorage(5, scratch_dir=tmp_path).set(torch.arange(7) % 5, data(torch.arange(7)))
        again = LazyMemmapStorage(5, scratch_dir=tmp_path, existsok=True)
        again.set(again.write_count % 5, data(7))

        assert again.get(slice(None))["a"].tolist() == [5, 6, 7, 3, 4]
        assert (again.write_count, again.filled_count) == (8, 5)

    def test_an_earlier_storage_that_does_not_fit_is_refused_with_all_reasons(self, tmp_path):
        LazyMemmapStorage(100, scratch_dir=tmp_path).set(0, data(1))
        with pytest.raises(InvalidArgumentError, match="max_size is 100, expected 50; ndim is 1, expected 2"):
            LazyMemmapStorage(50, scratch_dir=tmp_path, ndim=2, existsok=True)

    def test_data_of_another_structure_is_refused_by_an_earlier_storage(self, tmp_path):
        """Otherwise leaves that the new data lacks would have old values."""
        LazyMemmapStorage(100, scratch_dir=tmp_path).set(0, data(1))
        again = LazyMemmapStorage(100, scratch_dir=tmp_path, existsok=True)
        with pytest.raises(InvalidArgumentError, match="'image' is missing"):
            again.set(0, data(2).exclude("image"))

        assert again.get(0)["a"] == 1

    @pytest.mark.parametrize("text", ["{}", "[]", "nothing", '{"format": 1, "max_size": 100, "ndim": 1}'])
    def test_a_damaged_description_is_refused(self, tmp_path, text):
        (tmp_path / "storage.json").write_text(text)
        with pytest.raises(InvalidArgumentError):
            LazyMemmapStorage(100, scratch_dir=tmp_path, existsok=True)

    def test_files_that_are_too_short_are_refused(self, tmp_path):
        LazyMemmapStorage(100, scratch_dir=tmp_path).set(0, data(1))
        (tmp_path / "rows.1.bin").unlink()
        with pytest.raises(InvalidArgumentError, match=r"rows.1.bin is missing, expected 500000 bytes"):
            LazyMemmapStorage(100, scratch_dir=tmp_path, existsok=True)

    def test_counts_that_contradict_each_other_are_refused(self, tmp_path):
        LazyMemmapStorage(100, scratch_dir=tmp_path).set(0, data(1))
        np.array([101, 101, 0], np.int64).tofile(tmp_path / "counts.bin")
        with pytest.raises(InvalidArgumentError, match=r"counts.bin"):
            LazyMemmapStorage(100, scratch_dir=tmp_path, existsok=True)

    def test_a_temporary_folder_is_deleted_with_the_storage(self):
        storage = LazyMemmapStorage(10)
        storage.set(0, data(1))
        view, folder = storage.get(0), storage.scratch_dir
        assert folder.is_dir()
        del storage
        gc.collect()

        assert not folder.exists()
        assert view["a"] == 1

    def test_a_folder_of_the_user_is_kept(self, tmp_path):
        storage = LazyMemmapStorage(10, scratch_dir=tmp_path)
        storage.set(0, data(1))
        del storage
        gc.collect()

        assert (tmp_path / "rows.0.bin").exists()

    def test_a_folder_of_the_user_is_deleted_on_request(self, tmp_path):
        storage = LazyMemmapStorage(10, scratch_dir=tmp_path / "steps", auto_cleanup=True)
        storage.set(0, data(1))
        del storage
        gc.collect()

        assert not (tmp_path / "steps").exists()

    def test_files_of_others_in_a_folder_of_the_user_stay(self, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / "owner.lock").write_text("of another program")
        storage = LazyMemmapStorage(10, scratch_dir=tmp_path, auto_cleanup=True)
        storage.set(0, data(1))
        del storage
        gc.collect()

        assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "owner.lock"}
        storage = LazyMemmapStorage(10, scratch_dir=tmp_path)
        storage.set(0, data(1))
        assert storage.cleanup()
        assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "owner.lock"}

    def test_a_disk_that_is_too_small_is_detected_before_any_write(self, tmp_path, monkeypatch):
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100_000))
        storage = LazyMemmapStorage(100, scratch_dir=tmp_path)
        with pytest.raises(DiskFullError, match=r"500,800 bytes needed(.|\n)*another scratch_dir"):
            storage.set(0, data(1))

        assert not (tmp_path / "rows.0.bin").exists()
        monkeypatch.undo()
        storage.set(0, data(1))
        assert storage.filled_count == 1

    def test_files_are_sparse_before_they_are_written(self, tmp_path):
        storage = LazyMemmapStorage(1_000_000, scratch_dir=tmp_path)
        if shutil.disk_usage(tmp_path).free < 6e9:
            pytest.skip("a small disk")
        storage.set(0, data(1))

        assert (tmp_path / "rows.1.bin").stat().st_blocks * 512 < 1e6

    def test_data_that_is_not_a_tensor_is_refused(self):
        storage = LazyMemmapStorage(10)
        with pytest.raises(InvalidArgumentError, match=r"cannot be stored in a memory-mapped file: \('text',\)"):
            storage.set(0, TensorDict({"a": torch.zeros(2), "text": NonTensorData("x")}))
        storage.set(0, data(1))

        assert storage.filled_count == 1

    def test_batches_go_to_the_device(self):
        storage = LazyMemmapStorage(10, device="meta")
        storage.set(range(3), data(torch.arange(3)))

        for batch in (storage.get([0, 1]), storage.get(slice(None)), storage.get(0)):
            assert batch["a"].device.type == batch.device.type == "meta"


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_another_process_reads_and_writes_the_same_steps(method):
    """In mapped files with steps, in mapped files that do not exist yet, and in shared memory."""
    mapped, fresh, memory = LazyMemmapStorage(30), LazyMemmapStorage(30), LazyTensorStorage(30)
    for storage in (mapped, memory):
        storage.set(range(10), data(torch.arange(10)))
    if method == "fork":  # spawning raises this error when the storage is pickled
        memory.share()
    run(method, mapped, fresh, memory)

    for storage in (mapped, memory):
        assert len(storage) == storage.write_count == 20
        assert storage.get(slice(None))["a"].tolist() == [77, *range(1, 20)]
    assert fresh.get(slice(None))["a"].tolist() == list(range(10))
    assert fresh.get([9])["image"][0, 0] == 9
    assert fresh.scratch_dir.is_dir()


@pytest.mark.parametrize("early", ["shared_init", "share"])
def test_another_process_writes_the_first_data_into_memory_that_was_shared_before(early):
    storage = LazyTensorStorage(30, shared_init=early == "shared_init")
    if early == "share":
        storage.share()
    run("fork", storage)

    assert storage.shared
    assert len(storage) == 10
    assert storage.get(slice(None))["a"].tolist() == list(range(10))
    copied = copy.deepcopy(storage)
    copied.set(0, data(50))
    assert storage.get(0)["a"] == 0


def test_memory_of_another_device_is_shared_after_the_first_data_only():
    with pytest.raises(InvalidArgumentError, match="has no data yet and is on meta, expected the CPU"):
        LazyTensorStorage(30, device="meta", shared_init=True)


class TestCleanup:
    def test_it_removes_the_files_of_the_steps_once(self, tmp_path):
        storage = LazyMemmapStorage(30, scratch_dir=tmp_path / "rows")
        storage.set(0, data(1))

        assert storage.cleanup()
        assert not (tmp_path / "rows").exists()
        assert not storage.cleanup()

    def test_it_keeps_the_files_of_others(self, tmp_path):
        (tmp_path / "notes.txt").write_text("keep")
        storage = LazyMemmapStorage(30, scratch_dir=tmp_path)
        storage.set(0, data(1))

        assert storage.cleanup()
        assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]

    def test_a_storage_without_steps_has_no_files_to_remove(self):
        storage = LazyMemmapStorage(30)

        assert not storage.cleanup()
        assert not storage.scratch_dir.exists()


def test_a_forked_process_does_not_remove_the_folder():
    storage = LazyMemmapStorage(3)
    storage.set(0, data(1))
    child = os.fork()
    if not child:
        del storage
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)

    assert json.loads((storage.scratch_dir / "storage.json").read_text())["max_size"] == 3


def test_a_temporary_directory_exists_for_as_long_as_the_storage(tmp_path):
    directory = tempfile.TemporaryDirectory(dir=tmp_path)
    storage = LazyMemmapStorage(3, scratch_dir=directory)
    del directory
    gc.collect()
    storage.set(0, data(1))
    folder = storage.scratch_dir

    assert folder.parent == tmp_path
    assert (folder / "storage.json").exists()
    assert pickle.loads(pickle.dumps(storage)).get(0)["a"] == 1

    with pytest.warns(ResourceWarning, match="Implicitly cleaning up"):
        del storage
    assert not folder.exists()
