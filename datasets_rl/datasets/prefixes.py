"""Datasets by ids with the prefix of their source, `d4rl:hopper-medium-v2`, and registered prefixes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from datasets_rl.datasets import dataset_class
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.sources import source_names

__all__ = ["load_dataset", "register_dataset"]

_ALIASES = {"atari": "atari_dqn"}
_registered: dict[str, Callable[..., Any] | str] = {}


def register_dataset(prefix: str, dataset: Callable[..., Any] | str, *, replace: bool = False) -> None:
    """Set what `load_dataset` calls for a prefix, in this process.

        >>> register_dataset("toy", ToyDataset)
        >>> load_dataset("toy:example", batch_size=4)  # ToyDataset("example", batch_size=4)

    Args:
        prefix: Text without a colon; upper and lower case are the same.
        dataset: A class or function that takes the rest of the id and the options, or its place, "module:name", which
            is imported when the prefix is used.
        replace: Whether the prefix may be one that exists.

    Raises:
        InvalidArgumentError: If the prefix or the place is invalid, or the prefix exists and `replace` is False.
    """
    prefix = _normalized(prefix)
    if isinstance(dataset, str) and not all(dataset.partition(":")):
        raise InvalidArgumentError(f"dataset is {dataset!r}; expected a place such as 'module:name'")
    if not isinstance(dataset, str) and not callable(dataset):
        raise InvalidArgumentError(f"dataset is a {type(dataset).__name__}; expected a class, a function or its place")
    if not replace and prefix in _prefixes():
        raise _ExistingPrefixError(
            f"the prefix {prefix!r} is already registered", hint="give replace=True to replace it"
        )
    _registered[prefix] = dataset


def load_dataset(dataset_id: str, **options: Any) -> Any:
    """Open the dataset of an id with a prefix.

        >>> load_dataset("d4rl:hopper-medium-v2", batch_size=256)

    Args:
        dataset_id: A prefix, which is a source or was given to `register_dataset`, a colon, and the id in the source.
        **options: Arguments of the class of the dataset.

    Raises:
        InvalidArgumentError: If the id has no prefix, or there is no such prefix.
        UnknownIdError: If the source has no such id.
    """
    prefix, colon, name = dataset_id.partition(":")
    if not colon:
        raise InvalidArgumentError(
            f"the id {dataset_id!r} has no prefix; expected one of {', '.join(_prefixes())}, a colon and an id"
        )
    prefix = _normalized(prefix)
    dataset = _registered.get(prefix)
    if dataset is None:
        source = _ALIASES.get(prefix, prefix)
        if source not in source_names():
            raise InvalidArgumentError(f"no prefix {prefix!r} among {', '.join(_prefixes())}")
        dataset = dataset_class(source)
    if isinstance(dataset, str):
        module, _, attribute = dataset.partition(":")
        dataset = getattr(importlib.import_module(module), attribute)
    return dataset(name, **options)


class _ExistingPrefixError(InvalidArgumentError, KeyError):
    """Raised when a prefix exists already; TorchRL raises a `KeyError`."""


def _prefixes() -> list[str]:
    return sorted({*_registered, *_ALIASES, *source_names()})


def _normalized(prefix: str) -> str:
    normalized = prefix.strip().lower()
    if not normalized or ":" in normalized:
        raise InvalidArgumentError(f"the prefix is {prefix!r}; expected a text without a colon")
    return normalized
