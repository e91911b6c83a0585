"""Ids with a colon, as in TorchRL: of a source, `d4rl:hopper-medium-v2`, or of a registered prefix."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.sources import source_names

_ALIASES = {"atari": "atari_dqn"}
_registered: dict[str, Callable[..., Any] | str] = {}


def register_dataset(prefix: str, dataset: Callable[..., Any] | str, *, replace: bool = False) -> None:
    """Set what `load` calls for a prefix, in this process.

        >>> register_dataset("toy", ToyDataset)
        >>> load("toy:example", batch_size=4)  # ToyDataset("example", batch_size=4)

    Args:
        prefix: Text without a colon. Upper and lower case are the same.
        dataset: A class or function that takes the rest of the id and the options, or the text "module:name",
            which names the class or function, and is imported when the prefix is used.
        replace: Whether the prefix may be an existing prefix.

    Raises:
        InvalidArgumentError: If the prefix or the text is invalid, or the prefix exists and `replace` is False.
    """
    normalized = prefix.strip().lower()
    if not re.fullmatch(r"\w+", normalized):
        raise InvalidArgumentError(f"the prefix is {prefix!r}, expected letters, digits and underscores")
    if isinstance(dataset, str) and not all(dataset.partition(":")):
        raise InvalidArgumentError(
            f"dataset is {dataset!r}, expected 'module:name', a module and the name of a class or function in the module"
        )
    if not isinstance(dataset, str) and not callable(dataset):
        raise InvalidArgumentError(
            f"dataset is a {type(dataset).__name__}, expected a class, a function or the text 'module:name'"
        )
    if not replace and normalized in {*_registered, *_ALIASES, *source_names()}:
        raise _ExistingPrefixError(
            f"the prefix {normalized!r} is already registered", hint="give replace=True to replace the prefix"
        )
    _registered[normalized] = dataset


def resolve_prefix(dataset_id: str) -> tuple[Callable[..., Any] | None, str]:
    """Return what is registered for the prefix of an id, and the rest of the id, or None and the id with a slash.

    Other texts, such as addresses, are returned unchanged.
    """
    match = re.fullmatch(r"\s*(\w+)\s*:(?!//)(.+)", dataset_id)
    if match is None:
        return None, dataset_id
    prefix, name = match[1].lower(), match[2]
    dataset = _registered.get(prefix)
    if dataset is None:
        return None, f"{_ALIASES.get(prefix, prefix)}/{name}"
    if isinstance(dataset, str):
        module, _, attribute = dataset.partition(":")
        dataset = getattr(importlib.import_module(module), attribute)
    return dataset, name


class _ExistingPrefixError(InvalidArgumentError, KeyError):
    """Raised when a prefix exists already. TorchRL raises a `KeyError`."""
