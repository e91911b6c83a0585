"""What a step of a recipe is: from episodes to episodes."""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from datasets_rl.ted.episode_batch import EpisodeBatch

__all__ = ["Step", "snake"]


class Step(ABC):
    """One stage of a recipe. A step is a dataclass: its fields are its arguments.

    It sees blocks of whole episodes, in their order, and never learns which block they are in: what comes out of an
    episode depends on that episode alone, and on what `fit` has seen of all of them.
    """

    requires_fit: ClassVar[bool] = False
    """Whether `fit` must see all episodes first."""
    summary: ClassVar[str] = ""
    """One line for listings."""

    @abstractmethod
    def __call__(self, block: EpisodeBatch) -> EpisodeBatch | None:
        """Return what becomes of a block of whole episodes; None if nothing is left of it.

        Raises:
            InvalidArgumentError: If the data does not have what the step needs.
        """

    def fit(self, blocks: Iterable[EpisodeBatch]) -> None:
        """See all episodes once, as the steps before this one leave them, where `requires_fit` is set."""
        raise NotImplementedError(f"{type(self).__name__} learns nothing from {blocks}")

    @property
    def fitted(self) -> Mapping[str, Any]:
        """What `fit` found out: arrays, numbers and text by name, for the manifest."""
        return {}

    @classmethod
    def use(cls) -> str:
        """Return the name of this step in recipes: ``KeepReturns`` is ``keep_returns``."""
        return snake(cls.__name__)

    def to_json(self) -> dict[str, Any]:
        """Describe the step for the manifest: its name and the arguments that are not at their defaults."""
        fields = [one for one in dataclasses.fields(self) if one.init]  # type: ignore[arg-type]  # subclasses are dataclasses
        given = {one.name: getattr(self, one.name) for one in fields if getattr(self, one.name) != one.default}
        return {"use": self.use(), **{name: _plain(value) for name, value in given.items()}}


def snake(name: str) -> str:
    """Write a class's name as recipes do: ``CatFrames`` is ``cat_frames``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
