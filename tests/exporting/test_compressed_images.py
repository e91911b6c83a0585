"""Every format holds the same files, whether images are stored as pixels or compressed."""

import h5py
import numpy as np
import pytest
from exports import export_stored, write_images, write_robot
from pyarrow import parquet

from datasets_rl.exporting import Content
from datasets_rl.exporting.formats import FORMATS, get_format


def content_of(path):
    """Return what a file holds, without the names and digests of the dataset that it was exported from."""
    if path.suffix in {".hdf5", ".h5"}:
        arrays = {}
        with h5py.File(path) as file:
            file.visititems(
                lambda name, item: arrays.update({name: item[()]} if isinstance(item, h5py.Dataset) else {})
            )
        return arrays
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pydict()
    if path.suffix == ".npz":
        with np.load(path) as file:
            return dict(file)
    return path.read_bytes()


@pytest.mark.first(1, of=("to", "write"))
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("write", [write_images, write_robot])
@pytest.mark.parametrize("to", [name for name in FORMATS if get_format(name).holds_images])
def test_compressed_images_are_exported_as_pixels_are(to, write, known, tmp_path):
    outs = []
    for form in ("raw", "compressed"):
        stored = write(tmp_path / form / "toy", known=known, form=form)
        outs.append(export_stored(stored, to, tmp_path / form / f"out{'.h5' if to == 'd3rlpy' else ''}"))

    files = [
        {str(path.relative_to(out)): path for path in (out.rglob("*") if out.is_dir() else [out]) if path.is_file()}
        for out in outs
    ]
    assert files[0].keys() == files[1].keys()
    for name, path in files[0].items():
        if "rlds-export" in name:  # the digests of the dataset's files
            continue
        np.testing.assert_equal(content_of(path), content_of(files[1][name]), err_msg=name)


def test_the_disk_needs_room_for_pixels(tmp_path):
    stored = write_images(tmp_path / "toy", form="compressed")
    content = Content(stored)

    assert content.bytes > content.steps * 32 * 32 * 3
    assert content.bytes < Content(write_images(tmp_path / "raw")).bytes * 1.5
