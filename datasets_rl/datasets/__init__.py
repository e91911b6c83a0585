"""Replay buffers of datasets, with a class for each source.

``D4RLExperienceReplay``, for example, is in `datasets_rl.datasets.d4rl`, because only D4RL has these arguments.
The class of a source without such a module is made from the catalog of the source, see `dataset_class`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from datasets_rl.datasets.classes import dataset_class
from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay
from datasets_rl.datasets.stored import StoredExperienceReplay
from datasets_rl.datasets.streamed import StreamedExperienceReplay
from datasets_rl.sources import importable_sources

__all__ = ["BaseDatasetExperienceReplay", "StoredExperienceReplay", "StreamedExperienceReplay", "dataset_class"]

if TYPE_CHECKING:
    # The classes that are made, which a type checker cannot see.
    class DSRLExperienceReplay(BaseDatasetExperienceReplay): ...

    class DemoExperienceReplay(BaseDatasetExperienceReplay): ...

    class ExORLExperienceReplay(BaseDatasetExperienceReplay): ...

    class GenDGRLExperienceReplay(BaseDatasetExperienceReplay): ...

    class KatakombaExperienceReplay(BaseDatasetExperienceReplay): ...

    class LeRobotExperienceReplay(BaseDatasetExperienceReplay): ...

    class NeoRLExperienceReplay(BaseDatasetExperienceReplay): ...

    class OGBenchExperienceReplay(BaseDatasetExperienceReplay): ...

    class OGMARLExperienceReplay(BaseDatasetExperienceReplay): ...

    class RLUnpluggedExperienceReplay(BaseDatasetExperienceReplay): ...

    class RobomimicExperienceReplay(BaseDatasetExperienceReplay): ...

    class RobosetExperienceReplay(BaseDatasetExperienceReplay): ...


def __getattr__(name: str) -> Any:
    """Return the class of a source by the name of the class.

    Raises:
        AttributeError: If no source has a class of this name.
    """
    if name.endswith("ExperienceReplay"):
        for source in importable_sources()[0]:
            if (cls := dataset_class(source.name)).__name__ == name:
                return cls
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
