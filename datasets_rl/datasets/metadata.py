"""The metadata of a stored dataset, as values that programs use."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from datasets_rl.errors import ManifestError
from datasets_rl.format.manifest import array_file
from datasets_rl.format.npy import map_npy
from datasets_rl.format.reader import StoredDataset


def metadata_tree(stored: StoredDataset) -> dict[str, Any]:
    """Return the metadata of a dataset, nested by name: text and numbers unchanged, arrays as tensors.

    Raises:
        ManifestError: If a name is nested below a value, or a file of the metadata is not a file of the dataset.
    """
    tree: dict[str, Any] = {}
    for name, value in stored.manifest.metadata.items():
        *path, leaf = name.split("/")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise ManifestError(str(stored.folder), [f"metadata {name!r} is nested below a value"])
        node[leaf] = metadata_value(stored, value)
    return tree


def metadata_value(stored: StoredDataset, value: Any) -> Any:
    """Return a value of the metadata. An array that is a file of the dataset is read.

    Raises:
        ManifestError: If the file is not a file of the dataset.
    """
    file = array_file(value)
    if file is None:
        return value
    if stored.manifest.file(file) is None:
        problem = f"metadata names the file {file!r}, which is not a file of the dataset"
        raise ManifestError(str(stored.folder), [problem])
    array = np.array(stored.open_file(file, map_npy))
    # torch supports neither text nor foreign byte orders.
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="))) if array.dtype.kind in "biufc" else array
