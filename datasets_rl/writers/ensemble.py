"""The writers of several buffers."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.checkpoint import ensemble_problems
from datasets_rl.writers.base import Writer


class WriterEnsemble(Writer):
    """The writers of the buffers of an ensemble. Each writer writes to a single buffer. The ensemble rejects writes.

    Args:
        writers: The writer of each buffer.
    """

    def __init__(self, *writers: Writer) -> None:
        self.writers = writers

    @property
    @override
    def write_count(self) -> int:
        return sum(writer.write_count for writer in self.writers)

    @override
    def add(self, data: Any) -> int:
        raise _ambiguous_error("add", data)

    @override
    def extend(self, data: Any) -> Tensor:
        raise _ambiguous_error("extend", data)

    @override
    def empty(self, empty_write_count: bool = True) -> None:
        for writer in self.writers:
            writer.empty(empty_write_count)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"writers": [writer.state_dict() for writer in self.writers]}

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        return ensemble_problems("writer", self.writers, state_dict.get("writers"))

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for writer, state in zip(self.writers, state_dict["writers"], strict=True):
            writer.load_state_dict(state)

    def __getitem__(self, index: int | slice) -> Any:
        """Return the writer of a buffer for an integer, or an ensemble for a slice."""
        writers = self.writers[index]
        return writers if isinstance(writers, Writer) else WriterEnsemble(*writers)

    def __len__(self) -> int:
        """Return the number of writers."""
        return len(self.writers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.writers))})"


def _ambiguous_error(verb: str, data: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"cannot {verb} {type(data).__name__} to an ensemble: the buffer to write to is ambiguous",
        hint=f"write to a single buffer of the ensemble: rb[i].{verb}(data)",
    )
