"""Random crops and burn-in of the trajectories of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from datasets_rl.arguments import check, size_problems
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import CompositeSpec
from datasets_rl.ted.keys import NEXT
from datasets_rl.transforms.base import Keys, NestedKey, Transform, get_entry, key_list
from datasets_rl.transforms.compose import Compose


class RandomCropTensorDict(Transform):
    """Crop a random subsequence of each trajectory of a batch, with a uniformly drawn start.

    batch [2, 5]    a_0 a_1 a_2 a_3 a_4        sub_seq_len = 3        a_1 a_2 a_3
                    b_0 b_1 b_2  -   -                                b_0 b_1 b_2       - padding, by the mask

    Args:
        sub_seq_len: Number of steps of a subsequence.
        sample_dim: Time axis in the batch size. Negative values count from the last axis.
        mask_key: Key of the padding mask: True for steps, and False for the padding after them.

    Raises:
        InvalidArgumentError: If `sub_seq_len` is below 1.
    """

    shown = ("sub_seq_len", "sample_dim")

    def __init__(self, sub_seq_len: int, sample_dim: int = -1, mask_key: NestedKey | None = None) -> None:
        super().__init__()
        check(size_problems(sub_seq_len=sub_seq_len))
        self.sub_seq_len, self.sample_dim, self.mask_key = sub_seq_len, sample_dim, mask_key

    def transform_batch(self, batch: Any) -> Any:
        """Return the subsequences, a batch [..., sub_seq_len, ...].

        Raises:
            InvalidArgumentError: If a trajectory is shorter than `sub_seq_len`.
        """
        axis = self._axis(batch.shape)
        lengths = torch.tensor(batch.shape[axis])
        if self.mask_key is not None:
            lengths = get_entry(batch, self.mask_key).reshape(batch.shape).sum(axis, keepdim=True)
        if bool((lengths < self.sub_seq_len).any()):
            raise InvalidArgumentError(
                f"a trajectory of the batch has {int(lengths.min())} steps, expected at least sub_seq_len = "
                f"{self.sub_seq_len}"
            )
        shape = [1 if dim == axis else size for dim, size in enumerate(batch.shape)]
        starts = (torch.rand(shape) * (lengths.cpu() - self.sub_seq_len + 1)).long()
        offsets = torch.arange(self.sub_seq_len).reshape([-1 if dim == axis else 1 for dim in range(batch.ndim)])
        index = [
            starts + offsets
            if dim == axis
            else torch.arange(size).reshape([-1 if other == dim else 1 for other in range(batch.ndim)])
            for dim, size in enumerate(batch.shape)
        ]
        return batch[tuple(index)]

    def _axis(self, shape: Sequence[int]) -> int:
        axis = self.sample_dim + len(shape) if self.sample_dim < 0 else self.sample_dim
        if not 0 <= axis < len(shape):
            raise InvalidArgumentError(
                f"sample_dim is {self.sample_dim}, expected an axis of the batch size {list(shape)}"
            )
        return axis

    def update_specs(self, spec: CompositeSpec) -> None:
        """Crop the specs along the time axis, if they have batch axes."""
        if not spec.ndim:
            return
        cropped = spec.rearranged(lambda value: value.narrow(self._axis(spec.shape), 0, self.sub_seq_len))
        for key in list(spec.keys()):
            del spec[key]
        spec.shape = cropped.shape
        spec.update(cropped)


class BurnInTransform(Transform):
    """Run recurrent networks on the first steps of each trajectory to obtain their states for the remaining steps.

    batch [B, T]    s_0 ... s_C-1 | s_C ... s_T-1
                    burn_in = C   | result [B, T - C], with the state after s_C-1 at its first step

    Args:
        modules: Networks, or a single network, which run on the first steps without gradients. With an empty list, the
            first steps are only removed.
        burn_in: Number of first steps, C.
        out_keys: Keys of the states: the entry that a module writes under "next" is written to the first step of the
            result. By default all entries that the modules write under "next".
        context_key: Key of the first steps in the result, as a TensorDict [B, C]. The result then has batch size [B].
            By default, the first steps are discarded.

    Raises:
        InvalidArgumentError: If `burn_in` is negative.
    """

    shown = ("burn_in",)

    def __init__(
        self,
        modules: Callable[[Any], Any] | Sequence[Callable[[Any], Any]],
        burn_in: int,
        out_keys: Keys | None = None,
        *,
        context_key: NestedKey | None = None,
    ) -> None:
        networks = list(modules) if isinstance(modules, Sequence) else [modules]
        check(size_problems(0, burn_in=burn_in))
        states = key_list(_state_keys(networks) if out_keys is None else out_keys)
        super().__init__(out_keys=states, in_keys=states)
        self.networks = Compose(networks)
        self.burn_in, self.context_key = burn_in, context_key

    def transform_batch(self, batch: Any) -> Any:
        """Run the modules on the first steps, and return the remaining steps.

        Raises:
            InvalidArgumentError: If the trajectories have at most `burn_in` steps.
        """
        if batch.ndim < 2 or batch.shape[-1] <= self.burn_in:
            raise InvalidArgumentError(
                f"the batch size is {list(batch.shape)}, expected [..., T] with T > {self.burn_in}"
            )
        context, rest = batch[..., : self.burn_in], batch[..., self.burn_in :]
        if self.burn_in and len(self.networks):
            self._warm_up(context.copy(), rest)
        if self.context_key is None:
            return rest
        rest.batch_size = batch.shape[:-1]
        return rest.set(self.context_key, context)

    def _warm_up(self, context: Any, rest: Any) -> None:
        with torch.no_grad():
            for network in self.networks:
                context = network(context)
        for key in self.out_keys:
            state = get_entry(context, (NEXT, *((key,) if isinstance(key, str) else key)))[:, -1]
            existing = rest.get(key, None)
            states = (
                torch.zeros(*rest.shape, *state.shape[1:], dtype=state.dtype, device=state.device)
                if existing is None
                else existing.clone()
            )
            states[:, 0] = state
            rest.set(key, states)

    def update_specs(self, spec: CompositeSpec) -> None:
        """Raise an error: the specs of the outputs of modules are unknown before they run.

        Raises:
            InvalidArgumentError: Always.
        """
        del spec
        raise InvalidArgumentError(
            "the specs of the outputs of the modules of BurnInTransform are unknown",
            hint="transform a batch, and call spec_from_data on the result",
        )


def _state_keys(modules: Sequence[Any]) -> list[NestedKey]:
    return [
        key[1] if len(key) == 2 else key[1:]
        for module in modules
        for key in getattr(module, "out_keys", ())
        if isinstance(key, tuple) and key[0] == NEXT
    ]
