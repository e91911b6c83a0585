"""Spec of a choice: the union of several specs, or a set of non-tensor values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, is_tensor_collection, lazy_stack
from torch import Generator, Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError, WrongTypeError
from datasets_rl.specs._document import SpecDocument
from datasets_rl.specs._numbers import random_integers
from datasets_rl.specs.base import Lead, Rearrange, TensorSpec, parse_shape


class ChoiceSpec(TensorSpec):
    """Union of several specs, or a set of several non-tensor values.

    Args:
        choices: Specs, or `NonTensorData` and `NonTensorStack`, all of the same type, shape, dtype and device.

    Raises:
        InvalidArgumentError: If `choices` is empty, or the choices differ in type, shape, dtype or device.
    """

    kind = "choice"
    space = None

    def __init__(self, choices: Sequence[Any]) -> None:
        choices = list(choices)
        if not choices or not isinstance(choices[0], (TensorSpec, NonTensorData, NonTensorStack)):
            error = WrongTypeError if choices else InvalidArgumentError
            raise error(f"choices are {choices!r}, expected specs or non-tensor values")
        first = choices[0]
        for name in ("__class__", "shape", "dtype", "device"):
            values = [getattr(choice, name, None) for choice in choices]
            if any(value != values[0] for value in values):
                raise InvalidArgumentError(f"the choices differ in {name.strip('_')}: {', '.join(map(str, values))}")
        super().__init__(first.shape, first.device)
        self._choices = [choice.clone() for choice in choices]

    @property
    def dtype(self) -> torch.dtype | None:
        """Dtype of every choice, or `None` if the choices have no dtype."""
        return getattr(self._choices[0], "dtype", None)

    @property
    def num_choices(self) -> int:
        """Number of choices."""
        return len(self._choices)

    @property
    def _of_specs(self) -> bool:
        return isinstance(self._choices[0], TensorSpec)

    def rand(self, shape: Lead = None, *, generator: Generator | None = None) -> Any:
        """Draw a choice uniformly for each element along the leading axes `shape`, and then a value from that choice."""
        lead = parse_shape(shape)
        chosen = random_integers(0, self.num_choices - 1, lead, generator=generator)
        if not self._of_specs:
            return self._select(chosen)
        if not lead:
            return self._choices[int(chosen)].rand(generator=generator)
        drawn = self._choices[0].rand(lead, generator=generator)
        for number, choice in enumerate(self._choices[1:], 1):
            mask = (chosen == number).to(drawn.device)
            drawn[mask] = choice.rand((int(mask.sum()),), generator=generator)
        return drawn

    def _select(self, indices: Tensor) -> Any:
        if indices.ndim:
            return lazy_stack([self._select(index) for index in indices.unbind(0)])
        return self._choices[int(indices)].clone()

    def zero(self, shape: Lead = None) -> Any:
        """Return the zeros of the first spec, or the first value, with extra leading axes."""
        lead = parse_shape(shape)
        return self._choices[0].zero(lead) if self._of_specs else self._select(torch.zeros(lead, dtype=torch.int64))

    def one(self, shape: Lead = None) -> Any:
        """Return the ones of the first spec, or the second value if there are several, with extra leading axes."""
        lead, second = parse_shape(shape), min(1, self.num_choices - 1)
        return self._choices[0].one(lead) if self._of_specs else self._select(torch.full(lead, second))

    @override
    def problems(self, value: Any, place: str = "value") -> list[str]:
        if not self._of_specs:
            choices = [choice.tolist() for choice in self._choices]
            lead = getattr(value, "ndim", 0) - self.ndim
            if lead >= 0 and isinstance(value, (NonTensorData, NonTensorStack)):
                if all(element.tolist() in choices for element in _elements(value, lead)):
                    return []
                value = value.tolist()
            return [f"{place} is {value!r}, expected one of {choices}"]
        reasons = [choice.problems(value, place) for choice in self._choices]
        if not all(reasons):
            return []
        lead = getattr(value, "ndim", 0) - self.ndim
        if lead > 0 and all(
            any(choice.is_in(element) for choice in self._choices) for element in _elements(value, lead)
        ):
            return []
        first_reasons = "; or ".join(of_choice[0] for of_choice in reasons)
        return [f"{place} is not in any of {self.num_choices} choices: {first_reasons}"]

    def _projected(self, value: Any) -> Any:
        lead = getattr(value, "ndim", 0) - self.ndim
        if not isinstance(value, Tensor) or lead < 0 or not self._of_specs:
            raise InvalidArgumentError("; ".join(self.problems(value)), hint="only tensors can be projected")
        nearest = [self._nearest(element) for element in _elements(value, lead)]
        return torch.stack(nearest).reshape(value.shape)

    def _nearest(self, value: Tensor) -> Tensor:
        candidates = [choice.project(value) for choice in self._choices]
        distances = [
            float((candidate.double() - value.double()).abs().sum().nan_to_num(math.inf)) for candidate in candidates
        ]
        nearest: Tensor = candidates[distances.index(min(distances))]
        return nearest

    def cardinality(self) -> float:
        """Return the sum of the numbers of outcomes of the choices, which counts shared outcomes several times."""
        return sum(choice.cardinality() for choice in self._choices) if self._of_specs else self.num_choices

    @override
    def enumerate(self, use_mask: bool = False) -> Any:
        if not self._of_specs:
            return lazy_stack([choice.clone() for choice in self._choices])
        return torch.cat([choice.enumerate(use_mask) for choice in self._choices])

    @override
    def type_check(self, value: Any, key: Any = None) -> None:
        if self._of_specs:
            self._choices[0].type_check(value, key)

    @override
    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        if self._of_specs:
            return self._choices[0].encode(val, ignore_device=ignore_device)
        return val if is_tensor_collection(val) else NonTensorData(val, batch_size=self.shape)

    def _to_numpy(self, val: Any) -> Any:
        if self._of_specs:
            return self._choices[0].to_numpy(val)
        return val.data if isinstance(val, NonTensorData) else val.tolist()

    @override
    def rearranged(self, rearrange: Rearrange) -> ChoiceSpec:
        try:
            return ChoiceSpec(
                [choice.rearranged(rearrange) if self._of_specs else rearrange(choice) for choice in self._choices]
            )
        except InvalidArgumentError:
            raise
        except (RuntimeError, TypeError) as error:
            raise InvalidArgumentError(f"{self._named()}: {error}") from None

    @override
    def to(self, dest: Any) -> ChoiceSpec:
        if isinstance(dest, torch.dtype) and not self._of_specs:
            return self
        return self if dest is None else ChoiceSpec([choice.to(dest) for choice in self._choices])

    @override
    def to_json(self) -> dict[str, Any]:
        if not self._of_specs:
            raise InvalidArgumentError("a choice of non-tensor values cannot be described as JSON")
        return {"kind": self.kind, "choices": [choice.to_json() for choice in self._choices]}

    @classmethod
    @override
    def read(cls, document: SpecDocument) -> ChoiceSpec | None:
        choices = document.specs("choices")
        return cls(choices) if document.valid else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChoiceSpec) or self.num_choices != other.num_choices:
            return False
        pairs = zip(self._choices, other._choices, strict=True)
        return all(left == right if self._of_specs else left.tolist() == right.tolist() for left, right in pairs)

    __hash__ = TensorSpec.__hash__

    def __repr__(self) -> str:
        return f"ChoiceSpec({self._choices!r})"


def _elements(value: Any, lead: int) -> Iterator[Any]:
    """Yield the elements of a value along the first `lead` axes."""
    if not lead:
        yield value
        return
    for item in value.unbind(0):
        yield from _elements(item, lead - 1)
