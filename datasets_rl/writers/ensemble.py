"""The writers of several buffers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from datasets_rl.checkpoint import part_misfits
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.writers.base import Writer

__all__ = ["WriterEnsemble"]


class WriterEnsemble(Writer):
    """The writers of the buffers of an ensemble. Each writes to its own; the ensemble writes nothing.

    Args:
        writers: One for each buffer.
    """

    def __init__(self, *writers: Writer) -> None:
        self.writers = writers

    def add(self, data: Any) -> int:
        """Refuse."""
        raise _refused("add", data)

    def extend(self, data: Any) -> Tensor:
        """Refuse."""
        raise _refused("extend", data)

    def empty(self) -> None:
        """Tell every writer that its storage was emptied."""
        for writer in self.writers:
            writer.empty()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the writers."""
        return {"writers": [writer.state_dict() for writer in self.writers]}

    def misfits(self, state_dict: dict[str, Any]) -> list[str]:
        """Say why a state cannot be taken over: any of the writers' reasons, or another number of them."""
        return part_misfits("writer", self.writers, state_dict.get("writers"))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the states of the writers."""
        super().load_state_dict(state_dict)
        for writer, state in zip(self.writers, state_dict["writers"], strict=True):
            writer.load_state_dict(state)

    def __getitem__(self, index: int | slice) -> Any:
        """Return the writer of one buffer, or an ensemble of several."""
        chosen = self.writers[index]
        return chosen if isinstance(chosen, Writer) else WriterEnsemble(*chosen)

    def __len__(self) -> int:
        """Return the number of writers."""
        return len(self.writers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.writers))})"


def _refused(verb: str, data: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"cannot {verb} {type(data).__name__}: an ensemble does not know to which of its buffers it belongs",
        hint=f"write to one of them: rb[i].{verb}(data)",
    )
