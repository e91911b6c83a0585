"""Replay buffers of datasets, with a class for each source.

``D4RLExperienceReplay``, for example, is in `datasets_rl.datasets.d4rl`.
A source without a module here gets a class with the constructor of `BaseDatasetExperienceReplay`.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from importlib.util import find_spec
from typing import Any

from datasets_rl import sources
from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay
from datasets_rl.datasets.stored import StoredExperienceReplay
from datasets_rl.datasets.streamed import StreamedExperienceReplay
from datasets_rl.sources import get_source as get_source
from datasets_rl.sources import importable_sources, module_name

__all__ = ["BaseDatasetExperienceReplay", "StoredExperienceReplay", "StreamedExperienceReplay", "dataset_class"]

_SUFFIX = "ExperienceReplay"


@cache
def dataset_class(source: str) -> type[BaseDatasetExperienceReplay]:
    """Return the class for the datasets of a source.

    Raises:
        UnknownIdError: If there is no such source.
        InvalidArgumentError: If another package registered it and it cannot be imported.
    """
    get_source(source)  # an error of its module is explained here; find_spec would pass it on
    package = module_name(source)
    own = package == f"{sources.__name__}.{source}"
    module = f"{__name__}.{source}" if own else f"{package}.dataset"
    if (own or hasattr(sys.modules[package], "__path__")) and find_spec(module) is not None:
        classes = [one for one in vars(importlib.import_module(module)).values() if isinstance(one, type)]
        return next(
            one for one in classes if issubclass(one, BaseDatasetExperienceReplay) and vars(one).get("source") == source
        )
    attributes = {"source": source, "__module__": __name__, "__doc__": f"The datasets of the source {source}."}
    return type(f"{source.title().replace('_', '')}{_SUFFIX}", (BaseDatasetExperienceReplay,), attributes)


def __getattr__(name: str) -> Any:
    """Return the class of a source by the name of the class.

    Raises:
        AttributeError: If no source has a class of this name.
    """
    if name.endswith(_SUFFIX):
        for source in importable_sources()[0]:
            if (cls := dataset_class(source.name)).__name__ == name:
                return cls
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
