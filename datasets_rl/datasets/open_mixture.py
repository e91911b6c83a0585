"""Mixtures of several datasets in one buffer, opened by one call or from a file; in a call, members may also be buffers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets_rl import sources
from datasets_rl.buffers.keys import Missing
from datasets_rl.buffers.mixture import Mixture
from datasets_rl.buffers.replay import ReplayBuffer
from datasets_rl.catalog.mixture_file import Member, read_mixture
from datasets_rl.datasets import BaseDatasetExperienceReplay
from datasets_rl.datasets.loading import load
from datasets_rl.disk import expand_home
from datasets_rl.errors import Call, InvalidArgumentError, Remedy
from datasets_rl.format.current import is_dataset
from datasets_rl.preprocessing.naming import make_step
from datasets_rl.preprocessing.recipe import parse_inline
from datasets_rl.preprocessing.steps import STEPS
from datasets_rl.preprocessing.transforms import TransformStep, transforms_by_name
from datasets_rl.samplers import (
    RandomSampler,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)

_SAMPLERS: Mapping[str, type[Sampler]] = {
    "random": RandomSampler,
    "without_replacement": SamplerWithoutReplacement,
    "slices": SliceSampler,
    "slices_without_replacement": SliceSamplerWithoutReplacement,
}


def mixture(
    members: Iterable[str | os.PathLike[str] | Member | ReplayBuffer],
    *,
    weights: Sequence[float] | None = None,
    temperature: float | None = None,
    final_weights: Sequence[float] | None = None,
    anneal: int = 0,
    exact: bool = True,
    sampler: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    missing: Missing = "refuse",
    download: bool = True,
    home: Path | None = None,
    **options: Any,
) -> Mixture:
    """Mix datasets in one buffer.

        >>> rb = mixture(["d4rl/hopper-medium-v2", "d4rl/hopper-expert-v2"], weights=[0.7, 0.3], batch_size=256)
        >>> rb.sample()["index", "buffer_ids"]     # 179 or 180 times 0, then 1

    Args:
        members: Ids, folders, `Member` objects, or buffers with their own samplers and transforms.
        weights: Shares of the members, not necessarily normalized. Equal by default; see `temperature`.
        temperature: T sets the shares from the sizes, to steps ** (1 / T): with 1, every step is equally likely; with
            infinity, every dataset (Raffel et al. 2020, section 3.5.2).
        final_weights: Final shares; the shares change linearly to these.
        anneal: Number of batches until the final shares are reached.
        exact: If True, every batch has its shares up to less than one step, and the deviation carries over to the next
            batch. If False, the dataset of each step is drawn at random.
        sampler: Sampler of each dataset: ``{"use": "slices", "slice_len": 16}``, or "random", "without_replacement",
            "slices_without_replacement", each with the arguments of its class.
        batch_size: Number of steps in a batch.
        missing: How to treat keys that only some datasets have: "refuse", "drop" or "zero".
        download: Whether to download datasets that are not stored locally.
        home: Folder of the datasets, instead of RLDS_HOME.
        **options: Other arguments of `ReplayBuffer`, for the mixture: `prefetch`, `transform`, `pin_memory`; and
            `interleave` of `Mixture`.

    Raises:
        InvalidArgumentError: If arguments are mutually exclusive, or the datasets are incompatible; the message
            contains a table of the keys.
        UnknownIdError: If there is no such dataset.
    """
    parsed = [member if isinstance(member, (Member, ReplayBuffer)) else Member(os.fspath(member)) for member in members]
    datasets = [member for member in parsed if isinstance(member, Member)]
    weights = _merge_weights(weights, [member.weight for member in datasets], len(parsed), "weight")
    final_weights = _merge_weights(
        final_weights, [member.final_weight for member in datasets], len(parsed), "final_weight"
    )
    if temperature is not None and (weights is not None or not temperature > 0):
        raise InvalidArgumentError(f"temperature is {temperature}; expected a number above 0, without weights")
    opened = [
        member if isinstance(member, ReplayBuffer) else _open_member(member, sampler, download=download, home=home)
        for member in parsed
    ]
    if sampler is not None and "slice_len" in sampler:
        _check_slices(
            sampler,
            batch_size,
            {member.dataset: rb for member, rb in zip(parsed, opened, strict=True) if isinstance(member, Member)},
        )
    if temperature is not None:
        largest = max(map(len, opened))
        weights = [(len(buffer) / largest) ** (1 / temperature) for buffer in opened]
    return Mixture(
        *opened,
        p=weights,
        exact=exact,
        final_p=final_weights,
        anneal=anneal,
        unit=int((sampler or {}).get("slice_len", 1)),
        names=[
            member.dataset if isinstance(member, Member) else getattr(member, "dataset_id", f"buffer {number}")
            for number, member in enumerate(parsed)
        ],
        missing=missing,
        batch_size=batch_size,
        **options,
    )


def load_mixture(path: Path | str, **options: Any) -> Mixture:
    """Mix the datasets that a file names.

    Args:
        path: A TOML file with a table ``[[member]]`` for each dataset (the fields of `Member`; transforms may also be
            tables ``[[member.transform]]``) and arguments of `mixture` at the top level.
        **options: Arguments of `mixture` that override those of the file.

    Raises:
        InvalidArgumentError: If the file is invalid; the message lists all problems. Otherwise as for `mixture`.
        UnknownIdError: If there is no such dataset.
    """
    members, settings = read_mixture(expand_home(path))
    return mixture(members, **{**settings, **options})


def _merge_weights(
    weights: Sequence[float] | None, member_weights: Sequence[float | None], count: int, name: str
) -> Sequence[float] | None:
    """Resolve the shares, given globally or per member."""
    present = [weight for weight in member_weights if weight is not None]
    if not present:
        return weights
    if weights is not None or len(present) != count:
        raise InvalidArgumentError(
            f"{len(present)} of {count} members have a {name}{f', and {name}s were passed, too' if weights else ''}; "
            f"expected a {name} for every member, or {name}s"
        )
    return present


def _open_member(
    member: Member, sampler: Mapping[str, Any] | None, *, download: bool, home: Path | None
) -> BaseDatasetExperienceReplay:
    options: dict[str, Any] = {"transform": _make_transforms(member), "sampler": _sampler_from_options(sampler)}
    folder = expand_home(member.dataset)
    opened: BaseDatasetExperienceReplay
    if is_dataset(folder):
        opened = load(folder, **options)
    else:
        root = None if home is None else home / sources.split_id(member.dataset)[0]
        opened = load(member.dataset, root=root, download=download, **options)
    return opened


def _check_slices(sampler: Mapping[str, Any], batch_size: int | None, buffers: Mapping[str, Any]) -> None:
    """Check that batches can consist of these slices."""
    steps, problems = int(sampler["slice_len"]), []
    if batch_size is not None and batch_size % steps:
        problems.append(f"batch_size is {batch_size}; expected a multiple of {steps}, the slice_len")
    if sampler.get("strict_length", True):
        longest = {name: int(rb.episodes.lengths.max()) for name, rb in buffers.items()}
        problems += [
            f"slice_len is {steps}, but the longest episode of {name} has {length} steps"
            for name, length in longest.items()
            if length < steps
        ]
    if problems:
        raise InvalidArgumentError("; ".join(problems))


def _make_transforms(member: Member) -> list[Any]:
    steps = [_make_transform(transform, member) for transform in member.transforms]
    names = sorted({step.use() for step in steps if not isinstance(step, TransformStep)})
    if names:
        raise InvalidArgumentError(
            f"the transforms {', '.join(names)} of {member.dataset} need whole episodes, but are applied to batches",
            hint=Remedy(
                "apply them to the dataset first: `{}`", Call("preprocess", Call("locate", member.dataset), recipe=...)
            ),
        )
    return [step.transform for step in steps if isinstance(step, TransformStep)]


def _make_transform(spec: Any, member: Member) -> Any:
    if isinstance(spec, str):
        name, positional, named = parse_inline(spec)
    elif isinstance(spec, Mapping) and isinstance(spec.get("use"), str):
        name, positional, named = spec["use"], (), {key: value for key, value in spec.items() if key != "use"}
    else:
        raise InvalidArgumentError(
            f'a transform of {member.dataset} is {spec!r}; expected "resize:64", or a table with use = "resize"'
        )
    # Batches are transformed by the transforms themselves, also by those that recipes have as steps of episodes.
    if name not in STEPS and name in transforms_by_name():
        return TransformStep.from_arguments(name, transforms_by_name()[name], positional, named)
    return make_step(name, positional, named)


def _sampler_from_options(options: Mapping[str, Any] | None) -> Sampler | None:
    if options is None:
        return None
    arguments = dict(options)
    use = arguments.pop("use", None)
    if use not in _SAMPLERS:
        raise InvalidArgumentError(
            f"sampler uses {use!r}; expected {', '.join(_SAMPLERS)}", hint="for another sampler, pass buffers"
        )
    try:
        return _SAMPLERS[use](**arguments)
    except TypeError as error:
        raise InvalidArgumentError(f"the sampler {use} cannot be created: {error}") from error
