"""One of several specs, or one of several values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, is_tensor_collection, lazy_stack
from torch import Generator, Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._document import Entry
from datasets_rl.specs._numbers import integers
from datasets_rl.specs.base import Lead, Move, TensorSpec, sizes

__all__ = ["ChoiceSpec"]


class ChoiceSpec(TensorSpec):
    """What is in at least one of several specs, or is one of several values that are no tensors.

    Args:
        choices: Specs, or `NonTensorData` and `NonTensorStack`, all of one type, shape, dtype and device.

    Raises:
        InvalidArgumentError: If there is none, or they differ in that.
    """

    kind = "choice"
    space = None

    def __init__(self, choices: Sequence[Any]) -> None:
        choices = list(choices)
        if not choices or not isinstance(choices[0], (TensorSpec, NonTensorData, NonTensorStack)):
            raise InvalidArgumentError(f"choices are {choices!r}; expected specs, or values that are no tensors")
        first = choices[0]
        for name in ("__class__", "shape", "dtype", "device"):
            there = [getattr(choice, name, None) for choice in choices]
            if any(other != there[0] for other in there):
                raise InvalidArgumentError(
                    f"the choices differ in their {name.strip('_')}: {', '.join(map(str, there))}"
                )
        super().__init__(first.shape, first.device)
        self._choices = [choice.clone() for choice in choices]

    @property
    def dtype(self) -> torch.dtype | None:
        """Of every choice, if they have one."""
        return getattr(self._choices[0], "dtype", None)

    @property
    def num_choices(self) -> int:
        """How many choices there are."""
        return len(self._choices)

    @property
    def _of_specs(self) -> bool:
        return isinstance(self._choices[0], TensorSpec)

    def rand(self, shape: Lead = None, *, generator: Generator | None = None) -> Any:
        """Draw one of the choices for each element, each with the same chance, and then from it."""
        lead = sizes(shape)
        chosen = integers(0, self.num_choices - 1, lead, generator=generator)
        if not self._of_specs:
            return self._picked(chosen)
        if not lead:
            return self._choices[int(chosen)].rand(generator=generator)
        drawn = self._choices[0].rand(lead, generator=generator)
        for number, choice in enumerate(self._choices[1:], 1):
            places = (chosen == number).to(drawn.device)
            drawn[places] = choice.rand((int(places.sum()),), generator=generator)
        return drawn

    def _picked(self, chosen: Tensor) -> Any:
        if chosen.ndim:
            return lazy_stack([self._picked(one) for one in chosen.unbind(0)])
        return self._choices[int(chosen)].clone()

    def zero(self, shape: Lead = None) -> Any:
        """Return zeros, or the first of the values."""
        lead = sizes(shape)
        return self._choices[0].zero(lead) if self._of_specs else self._picked(torch.zeros(lead, dtype=torch.int64))

    def one(self, shape: Lead = None) -> Any:
        """Return ones, or the second of the values (the first, if there is no other)."""
        lead, second = sizes(shape), min(1, self.num_choices - 1)
        return self._choices[0].one(lead) if self._of_specs else self._picked(torch.full(lead, second))

    def misfits(self, value: Any, place: str = "value") -> list[str]:
        """Say why a value is not in the set: why it is in none of the choices."""
        if not self._of_specs:
            known = [choice.tolist() for choice in self._choices]
            lead = getattr(value, "ndim", 0) - self.ndim
            if lead >= 0 and isinstance(value, (NonTensorData, NonTensorStack)):
                if all(one.tolist() in known for one in _each(value, lead)):
                    return []
                value = value.tolist()
            return [f"{place} is {value!r}; expected one of {known}"]
        reasons = [choice.misfits(value, place) for choice in self._choices]
        if not all(reasons):
            return []
        lead = getattr(value, "ndim", 0) - self.ndim
        if lead > 0 and all(any(choice.is_in(one) for choice in self._choices) for one in _each(value, lead)):
            return []
        return [f"{place} is in none of {self.num_choices} choices: {'; or '.join(why[0] for why in reasons)}"]

    def project(self, value: Any) -> Any:
        """Return the value with each element that is in no choice projected onto the nearest one.

        Raises:
            InvalidArgumentError: If the choices are no specs of tensors, or the value has another shape.
        """
        if self.is_in(value):
            return value
        lead = getattr(value, "ndim", 0) - self.ndim
        if not isinstance(value, Tensor) or lead < 0 or not self._of_specs:
            raise InvalidArgumentError("; ".join(self.misfits(value)), hint="only tensors can be projected")
        near = [self._nearest(one) for one in _each(value, lead)]
        return torch.stack(near).reshape(value.shape)

    def _nearest(self, value: Tensor) -> Tensor:
        candidates = [choice.project(value) for choice in self._choices]
        away = [float((one.double() - value.double()).abs().sum().nan_to_num(math.inf)) for one in candidates]
        nearest: Tensor = candidates[away.index(min(away))]
        return nearest

    def cardinality(self) -> float:
        """Return how many outcomes the choices have together; what several have counts for each."""
        return sum(choice.cardinality() for choice in self._choices) if self._of_specs else self.num_choices

    def enumerate(self, use_mask: bool = False) -> Any:
        """Return the outcomes of all choices, one after the other, along a new first axis."""
        if not self._of_specs:
            return lazy_stack([choice.clone() for choice in self._choices])
        return torch.cat([choice.enumerate(use_mask) for choice in self._choices])

    def type_check(self, value: Any, key: Any = None) -> None:
        """Refuse a value of another dtype than the choices have."""
        if self._of_specs:
            self._choices[0].type_check(value, key)

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Encode as the first choice does; values that are no tensors are wrapped."""
        if self._of_specs:
            return self._choices[0].encode(val, ignore_device=ignore_device)
        return val if is_tensor_collection(val) else NonTensorData(val, batch_size=self.shape)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Undo `encode`."""
        if safe:
            self.assert_is_in(val)
        if self._of_specs:
            return self._choices[0].to_numpy(val)
        return val.data if isinstance(val, NonTensorData) else val.tolist()

    def moved(self, move: Move) -> ChoiceSpec:
        """Do to every choice what `move` does to tensors of its shape."""
        try:
            return ChoiceSpec([choice.moved(move) if self._of_specs else move(choice) for choice in self._choices])
        except (RuntimeError, TypeError) as error:
            raise InvalidArgumentError(f"{self._named()}: {error}") from None

    def to(self, dest: Any) -> ChoiceSpec:
        """Return the spec for a dtype or a device."""
        if isinstance(dest, torch.dtype) and not self._of_specs:
            return self
        return self if dest is None else ChoiceSpec([choice.to(dest) for choice in self._choices])

    def to_json(self) -> dict[str, Any]:
        """Describe the spec as JSON that `from_json` reads.

        Raises:
            InvalidArgumentError: If the choices are no specs.
        """
        if not self._of_specs:
            raise InvalidArgumentError("a choice of values that are no tensors has no JSON")
        return {"kind": self.kind, "choices": [choice.to_json() for choice in self._choices]}

    @classmethod
    def read(cls, entry: Entry) -> ChoiceSpec | None:
        """Read a spec of this kind."""
        choices = entry.specs("choices")
        return cls(choices) if entry.sound else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChoiceSpec) or self.num_choices != other.num_choices:
            return False
        pairs = zip(self._choices, other._choices, strict=True)
        return all(mine == its if self._of_specs else mine.tolist() == its.tolist() for mine, its in pairs)

    __hash__ = TensorSpec.__hash__

    def __repr__(self) -> str:
        return f"ChoiceSpec({self._choices!r})"


def _each(value: Any, lead: int) -> Iterator[Any]:
    """Yield the elements of a value, which has some leading axes."""
    if not lead:
        yield value
        return
    for one in value.unbind(0):
        yield from _each(one, lead - 1)
