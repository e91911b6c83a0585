"""Pieces of trajectories that a batch already holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import CompositeSpec
from datasets_rl.ted.keys import NEXT
from datasets_rl.transforms.base import Keys, NestedKey, Transform, listed, taken

__all__ = ["BurnInTransform", "RandomCropTensorDict"]


class RandomCropTensorDict(Transform):
    """Cut a run of steps out of each trajectory of a batch, every start that fits as likely as the others.

    batch [2, 5]    a_0 a_1 a_2 a_3 a_4        sub_seq_len = 3        a_1 a_2 a_3
                    b_0 b_1 b_2  -   -                                b_0 b_1 b_2       - padding, by the mask

    Args:
        sub_seq_len: Steps of a run.
        sample_dim: The axis of time of the batch size, counted from the last one.
        mask_key: Where it stands which steps are there: True, and then False to the end.
    """

    def __init__(self, sub_seq_len: int, sample_dim: int = -1, mask_key: NestedKey | None = None) -> None:
        super().__init__()
        if sub_seq_len < 1:
            raise InvalidArgumentError(f"sub_seq_len is {sub_seq_len}; expected at least 1")
        self.sub_seq_len, self.sample_dim, self.mask_key = sub_seq_len, sample_dim, mask_key

    def apply(self, batch: Any) -> Any:
        """Cut the runs out.

        Raises:
            InvalidArgumentError: If a trajectory is too short.
        """
        axis = self._axis(batch.shape)
        lengths = torch.tensor(batch.shape[axis])
        if self.mask_key is not None:
            lengths = taken(batch, self.mask_key).reshape(batch.shape).sum(axis, keepdim=True)
        if bool((lengths < self.sub_seq_len).any()):
            raise InvalidArgumentError(
                f"a trajectory of the batch has {int(lengths.min())} steps; expected at least sub_seq_len, "
                f"{self.sub_seq_len}"
            )
        shape = [1 if place == axis else size for place, size in enumerate(batch.shape)]
        starts = (torch.rand(shape) * (lengths.cpu() - self.sub_seq_len + 1)).long()
        run = torch.arange(self.sub_seq_len).reshape([-1 if place == axis else 1 for place in range(batch.ndim)])
        index = [
            starts + run
            if place == axis
            else torch.arange(size).reshape([-1 if one == place else 1 for one in range(batch.ndim)])
            for place, size in enumerate(batch.shape)
        ]
        return batch[tuple(index)]

    def _axis(self, shape: Sequence[int]) -> int:
        axis = self.sample_dim + len(shape) if self.sample_dim < 0 else self.sample_dim
        if not 0 <= axis < len(shape):
            raise InvalidArgumentError(f"sample_dim is {self.sample_dim}, and the batch size {list(shape)}")
        return axis

    def respec(self, spec: CompositeSpec) -> None:
        """Cut the specs, if time is one of their axes."""
        if not spec.ndim:
            return
        cut = spec.moved(lambda value: value.narrow(self._axis(spec.shape), 0, self.sub_seq_len))
        for key in list(spec.keys()):
            del spec[key]
        spec.shape = cut.shape
        spec.update(cut)

    def _facts(self) -> dict[str, Any]:
        return {"sub_seq_len": self.sub_seq_len, "sample_dim": self.sample_dim}


class BurnInTransform(Transform):
    """Split trajectories into their first steps, which give a recurrent network its state, and the rest.

    batch [B, T]    s_0 ... s_C-1 | s_C ... s_T-1
                    burn_in = C   | what comes out, [B, T - C], with the state after s_C-1 at its first step

    Args:
        modules: Networks that are run over the first steps, without gradients; none: the steps are only cut off.
        burn_in: How many steps, C.
        out_keys: The states: what a module writes under "next" is written at the first step of the rest. By default all
            that the modules write under "next".
        context_key: Where the first steps themselves stand in the result, as a TensorDict [B, C]; its batch size is
            [B] then. By default they are gone.
    """

    def __init__(
        self,
        modules: Callable[[Any], Any] | Sequence[Callable[[Any], Any]],
        burn_in: int,
        out_keys: Keys | None = None,
        *,
        context_key: NestedKey | None = None,
    ) -> None:
        self.modules = list(modules) if isinstance(modules, Sequence) else [modules]
        if burn_in < 0:
            raise InvalidArgumentError(f"burn_in is {burn_in}; expected at least 0")
        states = listed(_states(self.modules) if out_keys is None else out_keys)
        super().__init__(out_keys=states, in_keys=states)
        self.burn_in, self.context_key = burn_in, context_key

    def apply(self, batch: Any) -> Any:
        """Run the modules over the first steps, and return the rest.

        Raises:
            InvalidArgumentError: If the batch is not longer than `burn_in`.
        """
        if batch.ndim < 2 or batch.shape[-1] <= self.burn_in:
            raise InvalidArgumentError(
                f"the batch size is {list(batch.shape)}; expected [..., T] with T above {self.burn_in}"
            )
        context, rest = batch[..., : self.burn_in], batch[..., self.burn_in :]
        if self.burn_in and self.modules:
            self._warm_up(context.copy(), rest)
        if self.context_key is None:
            return rest
        rest.batch_size = batch.shape[:-1]
        return rest.set(self.context_key, context)

    def _warm_up(self, context: Any, rest: Any) -> None:
        with torch.no_grad():
            for module in self.modules:
                context = module(context)
        for key in self.out_keys:
            state = taken(context, (NEXT, *((key,) if isinstance(key, str) else key)))[:, -1]
            before = rest.get(key, None)
            states = (
                torch.zeros(*rest.shape, *state.shape[1:], dtype=state.dtype, device=state.device)
                if before is None
                else before.clone()
            )
            states[:, 0] = state
            rest.set(key, states)

    def respec(self, spec: CompositeSpec) -> None:
        """Refuse: what modules write is not known before they run."""
        del spec
        raise InvalidArgumentError("the spec of what modules write is not known", hint="look at a batch")

    def _facts(self) -> dict[str, Any]:
        return {"burn_in": self.burn_in}


def _states(modules: Sequence[Any]) -> list[NestedKey]:
    return [
        key[1] if len(key) == 2 else key[1:]
        for module in modules
        for key in getattr(module, "out_keys", ())
        if isinstance(key, tuple) and key[0] == NEXT
    ]
