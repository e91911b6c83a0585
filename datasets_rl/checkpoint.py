"""The state of a part of a replay buffer: as plain values, and as a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets_rl.errors import BadArgument

__all__ = ["Stateful", "read", "write"]


class Stateful:
    """What a storage, a sampler, a writer and a buffer have in common: a state that can be saved and taken over.

    A state is a tree of dicts with text keys, lists, tensors and JSON values: no object that would need pickle. A part
    says what its state is in `state_dict`, and takes one over in `load_state_dict`; the folder is made of that.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the state. Tensors may share memory with the part: save or copy them before it changes."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state that `state_dict` returned. Tensors are copied.

        Raises:
            BadArgument: If it does not fit; nothing has changed then.
        """
        refuse(self.misfits(state_dict))

    def misfits(self, state_dict: dict[str, Any]) -> list[str]:
        """Say why a state cannot be taken over, all reasons at once; empty if it can."""
        del state_dict
        return []

    def renumbered(self, state_dict: dict[str, Any], shift: int, slots: int) -> dict[str, Any]:
        """Rewrite a state of a full ring for a larger one: what was in slot i comes to slot (i - shift) mod slots.

            shift 2    slots  0 1 2 3      ages  2 3 0 1   ->   slots  0 1 2 3 . .     ages  0 1 2 3

        Only states that name slots have something to rewrite.
        """
        del shift, slots
        return state_dict

    def dumps(self, path: Path | str) -> None:
        """Write the state into a folder: arrays as .npy files, the rest as JSON, in one atomic step.

        What lies there unchanged from an earlier dump is not written again.

        Raises:
            BadArgument: If the state holds something that is neither tensor nor JSON value.
        """
        write(path, type(self).__name__, self.state_dict())

    def loads(self, path: Path | str) -> None:
        """Take over a state that `dumps` wrote.

        Raises:
            BadArgument: If it does not fit; nothing has changed then.
        """
        self.load_state_dict(read(path))


def refuse(reasons: list[str]) -> None:
    """Raise if there are reasons why a state cannot be taken over."""
    if reasons:
        raise BadArgument(f"the saved state does not fit: {'; '.join(reasons)}")


def write(path: Path | str, kind: str, state: dict[str, Any]) -> None:
    raise NotImplementedError


def read(path: Path | str) -> dict[str, Any]:
    raise NotImplementedError
