"""Where data comes from, a source a file. The folder is the registry: a file ``d4rl.py`` makes the source ``d4rl``."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from functools import cache

from datasets_rl.errors import UnknownIdError
from datasets_rl.sources._base import (
    Contents,
    Decision,
    Entry,
    Option,
    Recording,
    Score,
    Selection,
    Shard,
    Source,
)
from datasets_rl.sources._selection import read_numbers

__all__ = [
    "DERIVED",
    "ID_MAX",
    "Contents",
    "Decision",
    "Entry",
    "Option",
    "Recording",
    "Score",
    "Selection",
    "Shard",
    "Source",
    "find",
    "names",
    "read_numbers",
    "source",
    "split_derived",
    "split_id",
]

ID_MAX = 200
"""Bytes of an id. Most file systems store names of 255 bytes, and the files of a dataset add endings to its id."""


DERIVED = "@"
"""Between the id of a dataset and the name of one that was derived from it, ``demo/pendulum@td3_bc``."""
_BASE = re.compile(r"[^@]*(?:@\d+(?=@|$))?")
"""The id before that name; a number after the first ``@`` is OpenML's version, ``openml/iris@1``."""


@cache
def names() -> tuple[str, ...]:
    """Return the names of all sources, sorted, without importing them."""
    return tuple(
        sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg and module.name[0] != "_")
    )


@cache
def source(name: str) -> Source:
    """Return a source by name.

    Raises:
        UnknownIdError: If there is none.
    """
    if name not in names():
        raise UnknownIdError(name, difflib.get_close_matches(name, names(), n=3), f"the sources {', '.join(names())}")
    made: Source = importlib.import_module(f"{__name__}.{name}").SOURCE
    return made


def split_id(dataset_id: str) -> tuple[str, str]:
    """Split ``d4rl/hopper-medium-v2`` (or ``d4rl:hopper-medium-v2``) into the source and the id within it.

    Raises:
        UnknownIdError: If no source is named, none of that name exists, or the id is too long for the name of a file.
    """
    if (size := len(dataset_id.encode("utf-8", "surrogatepass"))) > ID_MAX:
        raise UnknownIdError(f"{dataset_id[:40]}...", known=f"ids of at most {ID_MAX} bytes; this one has {size:,}")
    head, mark, name = dataset_id.replace(":", "/", 1).partition("/")
    if not mark or not name:
        raise _unknown(dataset_id)
    source(head)
    return head, name.strip("/")


def find(dataset_id: str) -> Entry:
    """Return the catalog entry of an id with its source, ``d4rl/hopper-medium-v2``; no network.

    For a derived dataset, ``demo/pendulum@td3_bc``, it is that of the dataset that it was derived from.

    Raises:
        UnknownIdError: If there is no such id; the error names the nearest ones.
    """
    head, name = split_id(split_derived(dataset_id)[0])
    return source(head).entry(name)


def split_derived(dataset_id: str) -> tuple[str, str]:
    """Split ``demo/pendulum@td3_bc`` into the id and the name of the derived dataset, which is empty if it is none."""
    base = _BASE.match(dataset_id)
    end = len(dataset_id) if base is None else base.end()
    return dataset_id[:end], dataset_id[end + 1 :]


def _unknown(dataset_id: str) -> UnknownIdError:
    everything = [f"{name}/{one}" for name in names() for one in source(name).ids()]
    tails = {full.partition("/")[2]: full for full in everything}
    near = difflib.get_close_matches(dataset_id, tails, n=3, cutoff=0.5)
    return UnknownIdError(
        dataset_id, [tails[one] for one in near], f"the {len(everything)} ids of the catalogs; expected SOURCE/NAME"
    )
