"""Sources of datasets, one folder each: the folder ``d4rl`` is the source ``d4rl``.

Other packages add a source with an entry point in the group ``datasets_rl.sources``. The entry point names a module
with the same contents as the packages in this folder: `SOURCE` and, optionally, a submodule ``dataset`` with the class
of the replay buffers.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from datasets_rl.errors import InvalidArgumentError, UnknownIdError
from datasets_rl.sources.address import id_of_address, is_address, path_of_id
from datasets_rl.sources.base import (
    Basis,
    Decision,
    Entry,
    EpisodeReader,
    Listing,
    Option,
    Score,
    Selection,
    Shard,
    Source,
    SpaceSummary,
    nearest_names,
)
from datasets_rl.sources.selection import read_numbers, select_episodes

__all__ = [
    "DERIVED",
    "ID_MAX",
    "Basis",
    "Decision",
    "Entry",
    "EpisodeReader",
    "Listing",
    "Option",
    "Score",
    "Selection",
    "Shard",
    "Source",
    "SpaceSummary",
    "find",
    "get_source",
    "id_of_address",
    "importable_sources",
    "module_name",
    "path_of_id",
    "read_numbers",
    "select_episodes",
    "source_names",
    "split_address",
    "split_derived",
    "split_id",
]

ID_MAX = 200
"""Maximum bytes of an id. Most file systems limit names to 255 bytes, and the files of a dataset append suffixes to the
id."""


DERIVED = "@"
"""Separator of the id of a dataset and the name of a dataset derived from it, ``demo/pendulum@td3_bc``."""
_SHARED = frozenset({"flat"})
"""Folders that several sources use, and that are not sources."""
_BASE = re.compile(r"[^@]*(?:@\d+(?=@|$))?")
"""The id before the derived name. A number after the first ``@`` is a version of OpenML, ``openml/iris@1``."""


@cache
def source_names() -> tuple[str, ...]:
    """Return the names of all sources, sorted, without importing them."""
    return tuple(sorted(_module_paths()))


@cache
def module_name(source: str) -> str:
    """Return the name of the module of a source.

    Raises:
        UnknownIdError: If there is no such source.
    """
    modules = _module_paths()
    if source not in modules:
        raise UnknownIdError(source, _nearest_sources(source), f"the sources {', '.join(source_names())}")
    return modules[source]


@cache
def get_source(name: str) -> Source:
    """Return a source by name.

    Raises:
        UnknownIdError: If there is no such source.
        InvalidArgumentError: If the module that another package registered for it cannot be imported or does not have
            such a source.
    """
    module, hint = module_name(name), "correct or uninstall the package that registers it"
    try:
        instance: Any = importlib.import_module(module).SOURCE
    except Exception as error:
        # The module may belong to another package, and code of others may raise any exception.
        text = f"the source {name} cannot be imported from {module}: {type(error).__name__}: {' '.join(str(error).split())}"
        raise InvalidArgumentError(text, hint=hint) from error
    if not isinstance(instance, Source) or instance.name != name:
        stated = repr(instance.name) if isinstance(instance, Source) else type(instance).__name__
        raise InvalidArgumentError(f"SOURCE of {module} is {stated}, expected a Source named {name!r}", hint=hint)
    return instance


@cache
def importable_sources() -> tuple[tuple[Source, ...], tuple[InvalidArgumentError, ...]]:
    """Return all sources that can be imported, sorted by name, and an error for each of the others.

    What works on all sources must not fail because of a source that another package registered.
    """
    found: list[Source] = []
    errors: list[InvalidArgumentError] = []
    for name in source_names():
        try:
            found.append(get_source(name))
        except InvalidArgumentError as error:
            errors.append(error)
    return tuple(found), tuple(errors)


@cache
def _module_paths() -> dict[str, str]:
    """Map the names of all sources to their modules. The sources of this package take precedence."""
    folders = (module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
    own = {name: f"{__name__}.{name}" for name in folders if name not in _SHARED}
    return {entry_point.name: entry_point.value for entry_point in entry_points(group=__name__)} | own


def split_id(dataset_id: str) -> tuple[str, str]:
    """Split ``d4rl/hopper-medium-v2`` (or ``d4rl:hopper-medium-v2``) into the source and the id within it.

    Raises:
        UnknownIdError: If the id names no source or an unknown one, or is too long for the name of a file.
    """
    if (size := len(dataset_id.encode("utf-8", "surrogatepass"))) > ID_MAX:
        raise UnknownIdError(f"{dataset_id[:40]}...", known=f"ids of at most {ID_MAX} bytes, and not {size:,}")
    head, mark, name = dataset_id.replace(":", "/", 1).partition("/")
    if not mark or not name:
        raise _unknown_id_error(dataset_id)
    if head not in source_names():
        raise _unknown_source_error(dataset_id, head)
    get_source(head)
    return head, name.strip("/")


def split_address(dataset_id: str, selection: Selection) -> tuple[str, Selection]:
    """Return the id and the selection for the address of a dataset.

    ``hf://user/name@revision`` is a dataset of the source ``hf``, and ``https://host/a.npz`` is a dataset of the source
    ``url``. In an address, the text after ``@`` is a revision. In an id, ``hf/user/name@td3_bc``, the text names a
    derived dataset.

    Args:
        dataset_id: An address, or an id, which is returned unchanged.
        selection: The requested selection.

    Raises:
        InvalidArgumentError: If the address is not valid, or the selection has another revision.
    """
    if not is_address(dataset_id):
        return dataset_id, selection
    found, revision = id_of_address(dataset_id)
    if not revision:
        return found, selection
    if (other := selection.options.get("revision", revision)) != revision:
        raise InvalidArgumentError(f"{dataset_id} names the revision {revision}, but the selection has {other}")
    return found, replace(selection, options={**selection.options, "revision": revision})


def find(dataset_id: str) -> Entry:
    """Return the catalog entry of a full id, ``d4rl/hopper-medium-v2``, or of an address, without network access.

    For a derived dataset, ``demo/pendulum@td3_bc``, this is the entry of the original dataset.

    Raises:
        UnknownIdError: If there is no such id. The error suggests the closest ids.
        InvalidArgumentError: If an address, ``hf://...``, is not valid.
    """
    head, name = split_id(split_derived(split_address(dataset_id, Selection())[0])[0])
    return get_source(head).entry(name)


def split_derived(dataset_id: str) -> tuple[str, str]:
    """Split ``demo/pendulum@td3_bc`` into the id and the name of the derived dataset.

    The name is empty if the dataset is not derived from another dataset.
    """
    base = _BASE.match(dataset_id)
    end = len(dataset_id) if base is None else base.end()
    return dataset_id[:end], dataset_id[end + 1 :]


def _nearest_sources(wanted: str) -> list[str]:
    return difflib.get_close_matches(wanted.lower(), source_names(), n=3, cutoff=0.7)


def _unknown_source_error(dataset_id: str, source: str) -> UnknownIdError:
    nearest = _nearest_sources(source)
    ids = [f"{one.name}/{name}" for one in importable_sources()[0] if one.name in nearest for name in one.ids()]
    return UnknownIdError(
        dataset_id, nearest_names(dataset_id, ids) or nearest, f"the datasets of {', '.join(source_names())}"
    )


def _unknown_id_error(dataset_id: str) -> UnknownIdError:
    full_ids = [f"{one.name}/{name}" for one in importable_sources()[0] for name in one.ids()]
    by_name = {full_id.partition("/")[2]: full_id for full_id in full_ids}
    return UnknownIdError(
        dataset_id,
        [by_name[name] for name in nearest_names(dataset_id, by_name)],
        f"the {len(full_ids)} ids of the catalogs, expected SOURCE/NAME",
    )
