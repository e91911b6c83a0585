"""The base class of the steps of a recipe, which transform batches of episodes."""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from datasets_rl.ted.episode_batch import EpisodeBatch


class Step(ABC):
    """A step of a recipe: a dataclass whose fields are the arguments of the step.

    A step transforms batches of whole episodes, in order. The result for an episode must not depend on the batch that
    contains it: it depends on that episode alone, and on the parameters that `fit` computed from all episodes.
    """

    requires_fit = False
    """Whether `fit` must be called with all episodes before the first call."""
    former: Mapping[str, str] = {}
    """Arguments by their former names, which recipes may still use."""

    @abstractmethod
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        """Return the transformed batch of whole episodes; None if no steps remain.

        Raises:
            InvalidArgumentError: If the batch lacks a field that the step needs, or a value is out of range.
        """

    def fit(self, batches: Iterable[EpisodeBatch]) -> None:
        """Fit the parameters of the step to all episodes; called once if `requires_fit` is set.

        Args:
            batches: Batches of all episodes, as transformed by the previous steps.
        """
        raise NotImplementedError(f"{type(self).__name__} has no parameters to fit to {batches}")

    @property
    def fitted(self) -> Mapping[str, Any]:
        """The fitted parameters by name, for the manifest: arrays, numbers and strings."""
        return {}

    @classmethod
    def use(cls) -> str:
        """Return the name of the step in recipes, the name of the class in snake case: ``keep_returns``."""
        return snake(cls.__name__)

    def to_json(self) -> dict[str, Any]:
        """Return the description of the step for the manifest: its name, and the arguments that are not defaults."""
        fields = [field for field in dataclasses.fields(self) if field.init]  # type: ignore[arg-type]  # subclasses are dataclasses
        values = {field.name: getattr(self, field.name) for field in fields}
        arguments = {field.name: values[field.name] for field in fields if values[field.name] != field.default}
        return {"use": self.use(), **{name: _plain(value) for name, value in arguments.items()}}


def snake(name: str) -> str:
    """Return the name of a class in snake case, as recipes write it: ``cat_frames`` for ``CatFrames``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
