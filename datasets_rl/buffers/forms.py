"""The choices of a call of `sample`: the rows, the fields and the form of the batch.

format="tensordict"    {"observation": ..., "next": {"reward": ...}}    a TensorDict
format="dict"          {"observation": ..., "next.reward": ...}         its tensors
format="numpy"         {"observation": ..., "next.reward": ...}         arrays of the same memory
format="jax"           {"observation": ..., "next.reward": ...}         arrays on the default device of jax
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy import ndarray
from tensordict import is_non_tensor, is_tensor_collection
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.libraries import importing
from datasets_rl.storages.base import Storage
from datasets_rl.storages.packed import as_array
from datasets_rl.ted.keys import NEXT, Key, as_key, keys_named

BatchForm = Literal["tensordict", "dict", "numpy", "jax"]
"""What `sample` returns a batch as."""
_FORMS = get_args(BatchForm)


def check_form(form: Any) -> None:
    """Check the argument `format` of `sample`.

    Raises:
        InvalidArgumentError: If there is no such form.
        MissingDependencyError: If the form is "jax", and jax is not installed.
    """
    if form not in _FORMS:
        raise InvalidArgumentError(f"format is {form!r}, expected one of {', '.join(map(repr, _FORMS))}")
    if form == "jax":
        _jax()


def as_form(batch: Any, form: BatchForm) -> Any:
    """Return a batch in another form.

    Args:
        batch: A TensorDict.
        form: See the module.

    Raises:
        InvalidArgumentError: If the batch is not a TensorDict.
    """
    if not is_tensor_collection(batch):
        raise InvalidArgumentError(
            f"format is {form!r}, and the batch is a {type(batch).__name__}, expected a TensorDict",
            hint="leave format out, or convert the batch in a transform",
        )
    if form == "tensordict":
        return batch
    leaves: dict[str, Any] = {}
    _add_leaves(batch, "", leaves)
    return columns_as(leaves, form)


def columns_as(columns: Mapping[str, Any], form: BatchForm) -> dict[str, Any]:
    """Return the leaves of a batch as a flat dict, see the module, for each form but "tensordict".

    Args:
        columns: Arrays and tensors by dotted name. Other values are returned unchanged.
        form: The form.
    """
    if form == "dict":
        return {name: torch.from_numpy(leaf) if type(leaf) is ndarray else leaf for name, leaf in columns.items()}
    convert = _for_jax if form == "jax" else as_array
    arrays = {name: leaf if type(leaf) is ndarray else convert(leaf) for name, leaf in columns.items()}
    # A single call for all arrays: each call costs as much as the gather of a small batch.
    return _jax().device_put(arrays) if form == "jax" else arrays


def _add_leaves(batch: Any, path: str, leaves: dict[str, Any]) -> None:
    """Add the leaves of a TensorDict to a flat dict."""
    for name, value in batch.items():
        if is_tensor_collection(value) and not is_non_tensor(value):
            _add_leaves(value, f"{path}{name}.", leaves)
        else:
            leaves[path + name] = value


def _for_jax(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or leaf.is_cpu:
        return as_array(leaf)
    return _jax().dlpack.from_dlpack(leaf.detach().contiguous())


def _jax() -> Any:
    with importing("jax", "jax", "sample(format='jax')"):
        import jax
    return jax


def given_rows(rows: Any, storage: Storage) -> Any:
    """Return the index of given rows of a storage, as a sampler returns it.

    Rows in main memory are checked. Rows on an accelerator are not, because the check would wait for the accelerator.

    Args:
        rows: Integers [B], for a storage of several leading axes [B, ndim], as ``batch["index"]``.
        storage: The storage that has the rows.

    Raises:
        InvalidArgumentError: If the rows have another shape, are not integers, or are out of range.
    """
    index = rows if isinstance(rows, Tensor) else _integers(rows)
    axes, expected = (1, "[B]") if storage.ndim == 1 else (2, f"[B, {storage.ndim}]")
    if index.dtype == torch.bool or index.is_floating_point() or index.is_complex():
        raise InvalidArgumentError(f"rows are {index.dtype}, expected integers", hint="mask.nonzero() of a mask [N]")
    if index.ndim != axes or (axes > 1 and index.shape[1] != storage.ndim):
        raise InvalidArgumentError(
            f"rows have the shape {list(index.shape)}, expected {expected}",
            hint="an index of another shape is read by buffer[rows]",
        )
    if index.is_cpu and not (axes == 1 and _are_within(index, len(storage))):
        sizes = torch.as_tensor(getattr(storage, "shape", (len(storage),)))
        places = index.unsqueeze(1) if axes == 1 else index
        outside = ((places < 0) | (places >= sizes)).any(1).nonzero().view(-1)
        if len(outside):
            row = index[outside[0]].tolist()
            raise InvalidArgumentError(
                f"{len(outside):,} of {len(index):,} rows are out of range, the first at position {int(outside[0])}: "
                f"{row}, expected integers in [0, {', '.join(f'{int(size):,}' for size in sizes)})"
            )
    return storage.ravel(index.to(torch.int64))


def _are_within(index: Tensor, size: int) -> bool:
    """Return whether rows are in [0, size): two steps of numpy, in place of ten of torch that also find the rows."""
    rows = index.numpy()
    return bool(not rows.size or (rows.min() >= 0 and rows.max() < size))


def _integers(rows: Any) -> Tensor:
    array = np.asarray(rows)
    if not array.size:
        return torch.zeros(array.shape, dtype=torch.int64)
    if array.dtype.kind not in "iu":
        kind = "mixed types" if array.dtype.kind == "O" else str(array.dtype)
        raise InvalidArgumentError(f"rows are of {kind}, expected integers")
    return torch.from_numpy(array.astype(np.int64))


def select_fields(batch: Any, names: Iterable[str | Key], info: Mapping[Any, Any]) -> Any:
    """Return some fields of a batch, and its info, except info that replaces fields under "next".

    Args:
        batch: A TensorDict.
        names: Names of the fields, see `datasets_rl.ted.keys.keys_named`.
        info: The info of the sampler, by its key in the batch.

    Raises:
        UnknownKeyError: If the batch has no such field.
        InvalidArgumentError: If the batch is not a TensorDict.
    """
    if not is_tensor_collection(batch):
        raise InvalidArgumentError(f"keys were given, and the batch is a {type(batch).__name__}, expected a TensorDict")
    leaves = batch.keys(include_nested=True, leaves_only=True)
    present = [(key,) if isinstance(key, str) else key for key in leaves]
    chosen = keys_named(names, present)
    entries = [key for key in map(as_key, info) if key[0] != NEXT and key in present]
    return batch.select(*dict.fromkeys([*chosen, *entries]))
