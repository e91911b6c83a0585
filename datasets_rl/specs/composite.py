"""Specs by key."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping, Sequence
from typing import Any

from tensordict import TensorDict, is_tensor_collection
from torch import Generator

from datasets_rl.specs._base import TensorSpec
from datasets_rl.ted.keys import as_key

__all__ = ["CompositeSpec"]


class CompositeSpec:
    """The set of TensorDicts whose entries are in the specs of their keys.

    Args:
        specs: A spec, or a mapping of further specs, by key.
    """

    def __init__(self, specs: Mapping[str, Any]) -> None:
        self._specs: dict[str, TensorSpec | CompositeSpec] = {
            key: CompositeSpec(spec) if isinstance(spec, Mapping) else spec for key, spec in specs.items()
        }

    def keys(self) -> KeysView[str]:
        """Return the keys of the first level."""
        return self._specs.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def items(self) -> Iterator[tuple[str, TensorSpec | CompositeSpec]]:
        """Return the keys of the first level with their specs."""
        return iter(self._specs.items())

    def __len__(self) -> int:
        return len(self._specs)

    def __contains__(self, key: object) -> bool:
        return key in self._specs

    def __getitem__(self, key: str | Sequence[str]) -> Any:
        head, *rest = (key,) if isinstance(key, str) else as_key(key)
        spec = self._specs[head]
        if not rest:
            return spec
        if not isinstance(spec, CompositeSpec):
            raise KeyError(key)
        return spec[tuple(rest)]

    def rand(self, shape: Sequence[int] = (), *, generator: Generator | None = None) -> TensorDict:
        """Draw a TensorDict of batch size `shape`."""
        drawn = {key: spec.rand(shape, generator=generator) for key, spec in self.items()}
        return TensorDict(drawn, batch_size=list(shape))

    def zero(self, shape: Sequence[int] = ()) -> TensorDict:
        """Return a TensorDict of zeros of batch size `shape`."""
        return TensorDict({key: spec.zero(shape) for key, spec in self.items()}, batch_size=list(shape))

    def is_in(self, value: TensorDict) -> bool:
        """Say whether every key is there and its value is in its spec; further keys do not matter."""
        present = set(value.keys()) if is_tensor_collection(value) else set()
        return all(key in present and spec.is_in(value.get(key)) for key, spec in self.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CompositeSpec) and self._specs == other._specs

    def __hash__(self) -> int:
        return hash(frozenset(self._specs))

    def __repr__(self) -> str:
        lines = "".join(f"\n    {key}: {str(spec).replace(chr(10), chr(10) + '    ')}," for key, spec in self.items())
        return f"CompositeSpec({lines})"
