"""The class of the datasets of a source: the class in the module of the source, or a class made from the catalog."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

from datasets_rl import sources
from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay
from datasets_rl.sources import get_source, module_name

_WIDTH = 120


@cache
def dataset_class(source: str) -> type[BaseDatasetExperienceReplay]:
    """Return the class for the datasets of a source.

    A source with further arguments has a module with the class: ``datasets_rl.datasets.d4rl``, or the submodule
    ``dataset`` in another package. For other sources, the class is made: ``dataset_class`` in the catalog has the name and
    the parts of the docstring.

    Raises:
        UnknownIdError: If there is no such source.
        InvalidArgumentError: If another package registered the source, and the module cannot be imported.
    """
    catalog = get_source(source).catalog  # explains an error of the source's module, which find_spec would not
    package, room = module_name(source), __name__.rpartition(".")[0]
    own = package == f"{sources.__name__}.{source}"
    module = f"{room}.{source}" if own else f"{package}.dataset"
    if (own or hasattr(sys.modules[package], "__path__")) and find_spec(module) is not None:
        classes = [one for one in vars(importlib.import_module(module)).values() if isinstance(one, type)]
        return next(
            one for one in classes if vars(one).get("source") == source and issubclass(one, BaseDatasetExperienceReplay)
        )
    stated: Mapping[str, Any] = catalog.get("dataset_class", {})
    name = stated.get("name", f"{source.title().replace('_', '')}ExperienceReplay")
    attributes = {"source": source, "__module__": room, "__doc__": "\n\n".join(_docstring(source, stated))}
    return type(name, (BaseDatasetExperienceReplay,), attributes)


def _docstring(source: str, stated: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paragraphs of the docstring of a class that is made."""
    yield stated.get("summary", f"Replay buffer of a dataset of the source {source}.")
    if example := stated.get("example"):
        yield "\n".join(f"    {line}" for line in example)
    for paragraph in stated.get("notes", ()):
        yield textwrap.fill(paragraph, _WIDTH, break_on_hyphens=False)
    yield "`BaseDatasetExperienceReplay` describes the other arguments and errors."
    if about := stated.get("dataset_id"):
        yield f"Args:\n{_entry(f'dataset_id: {about}')}"
    if raises := stated.get("raises"):
        yield f"Raises:\n{_entry(raises)}"


def _entry(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False)
