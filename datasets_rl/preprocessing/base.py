"""The base class of the steps of a recipe, which transform batches of episodes."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.steps import snake
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key

if TYPE_CHECKING:
    from datasets_rl.preprocessing.merge import Stored


class Step(ABC):
    """A step of a recipe: a dataclass with the arguments of the step as fields.

    A step transforms batches of whole episodes, in order. The result for an episode must not depend on the batch that
    contains the episode: the result depends on that episode alone, and on the parameters that `fit` computed from all
    episodes.
    """

    requires_fit = False
    """Whether `fit` must be called with all episodes before the first call."""

    @property
    def is_digest(self) -> bool:
        """Whether a manifest records a digest of the step instead of the arguments."""
        return False

    @property
    def steps_combined(self) -> int:
        """The number of steps that a step of the result stands for, which divides the frame rate."""
        return 1

    @abstractmethod
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        """Return the transformed batch of whole episodes, or None if no steps remain.

        Raises:
            InvalidArgumentError: If the batch lacks a field that the step needs, or a value is out of range.
        """

    def prepare(self, stored: Stored) -> None:
        """Look at the dataset that the recipe reads, before `fit` and the first call. By default, nothing is looked at.

        Args:
            stored: The dataset as it is before the first step of the recipe. `EpisodeBatch.numbers` counts its episodes.

        Raises:
            InvalidArgumentError: If the step does not fit the dataset.
        """

    def fit(self, batches: Iterable[EpisodeBatch]) -> None:
        """Fit the parameters of the step to all episodes. The method is called once if `requires_fit` is set.

        Args:
            batches: Batches of all episodes, as transformed by the previous steps.
        """
        raise NotImplementedError(f"{type(self).__name__} has no parameters to fit to {batches}")

    @property
    def fitted(self) -> Mapping[str, Any]:
        """The fitted parameters by name, for the manifest: arrays, numbers and strings."""
        return {}

    def restore(self, fitted: Mapping[str, Any]) -> None:
        """Set the fitted parameters to values that `fitted` returned, given as arrays, lists, numbers and strings.

        Raises:
            InvalidArgumentError: If the step has no such parameters.
        """
        if fitted:
            raise InvalidArgumentError(f"{type(self).__name__} has no parameters {', '.join(fitted)}")

    @property
    def window(self) -> int:
        """The number of consecutive states that a state of the result depends on, itself included."""
        return 1

    def for_environment(self, fields: EpisodeBatch) -> Step | None:
        """Return the step that is applied to an environment, so that a policy gets what the dataset holds.

        `__call__` of the returned step transforms observations, with `window` consecutive observations in a batch, and
        `invert_actions` maps actions back. Each step decides: by default, a step is refused.

        Args:
            fields: A step of the environment, transformed by the previous steps: with the observation as states,
                or with the action as fields of the step.

        Returns:
            The step, restricted to these fields, or None if the step changes no field.

        Raises:
            InvalidArgumentError: If an environment cannot repeat what the step does to these fields.
        """
        del fields
        raise InvalidArgumentError(
            f"{type(self).__name__} has no rule for environments", hint="override Step.for_environment"
        )

    def invert_actions(
        self, actions: Mapping[Key, NDArray[Any]], before: Mapping[Key, NDArray[Any]]
    ) -> Mapping[Key, NDArray[Any]]:
        """Return the actions that the step transforms into `actions`, [1, ...] each, of any dtype.

        Args:
            actions: The actions of a policy by field, in the units of the dataset.
            before: An example of the actions before the step: the result has the same fields and shapes.
        """
        del before
        return actions

    @classmethod
    def use(cls) -> str:
        """Return the name of the step in recipes, the name of the class in snake case: ``keep_returns``."""
        return snake(cls.__name__)

    def to_json(self) -> dict[str, Any]:
        """Return the description of the step for the manifest: the name, and the arguments that are not defaults."""
        fields = [field for field in dataclasses.fields(self) if field.init]  # type: ignore[arg-type]  # subclasses are dataclasses
        values = {field.name: getattr(self, field.name) for field in fields}
        arguments = {field.name: values[field.name] for field in fields if values[field.name] != field.default}
        return {"use": self.use(), **{name: _plain(value) for name, value in arguments.items()}}


class DataStep(Step):
    """Base class of steps that select steps and episodes, or write rewards, targets and goals.

    Such steps do not change the observations and actions of an environment.
    """

    @override
    def for_environment(self, fields: EpisodeBatch) -> None:
        del fields


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
