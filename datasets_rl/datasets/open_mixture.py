"""Mixtures of several datasets in a buffer, opened by a call or from a file. In a call, members may also be buffers."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, cast

import torch

from datasets_rl import sources
from datasets_rl.arguments import check, size_problems, unless
from datasets_rl.buffers.keys import Missing
from datasets_rl.buffers.mixture import Mixture
from datasets_rl.buffers.replay import ReplayBuffer
from datasets_rl.catalog.mixture_file import Member, read_mixture
from datasets_rl.datasets import BaseDatasetExperienceReplay
from datasets_rl.datasets.loading import load
from datasets_rl.disk import expand_home
from datasets_rl.errors import InvalidArgumentError, WrongTypeError
from datasets_rl.format.current import is_dataset
from datasets_rl.preprocessing.naming import Arguments, check_batch_transforms
from datasets_rl.preprocessing.recipe import parse_inline
from datasets_rl.preprocessing.transforms import TransformStep, transforms_by_name
from datasets_rl.samplers import (
    RandomSampler,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from datasets_rl.ted.keys import Key

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
    sampler: str | Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    keys: str | Iterable[str | Key] | None = None,
    missing: Missing = "refuse",
    download: bool = True,
    home: Path | None = None,
    lock: Path | str | bool | None = None,
    opened: Sequence[ReplayBuffer] | None = None,
    **options: Any,
) -> Mixture:
    """Mix datasets in a buffer.

        >>> rb = mixture(["d4rl/hopper-medium-v2", "d4rl/hopper-expert-v2"], weights=[0.7, 0.3], batch_size=256)
        >>> rb.sample()["index", "buffer_ids"]     # 179 or 180 times 0, then 1

    Args:
        members: Ids, folders, `Member` objects, or buffers with samplers and transforms.
        weights: Shares of the members, not necessarily normalized. Equal by default, see `temperature`.
        temperature: T sets the shares from the sizes, to steps ** (1 / T): with 1, every step is equally likely, with
            infinity, every dataset (Raffel et al. 2020, section 3.5.2).
        final_weights: Final shares, to which the shares change linearly.
        anneal: Number of batches until the final shares are reached.
        exact: If True, every batch has its shares up to less than 1 step, and the deviation carries over to the next
            batch. If False, the dataset of each step is drawn at random.
        sampler: Sampler of each dataset: "random", "without_replacement", "slices" or "slices_without_replacement",
            with the arguments of its class, ``{"use": "slices", "slice_len": 16}``. `num_slices` is the number of
            slices in the whole batch of `batch_size` steps, which then has slices of ``batch_size / num_slices`` steps.
        batch_size: Number of steps in a batch.
        keys: The fields of batches, as for `load`. Other fields are not read.
        missing: How to treat keys that only some datasets have: "refuse", "drop" or "zero".
        download: Whether to download datasets that are not stored locally.
        home: Folder of the datasets, instead of RLDS_HOME.
        lock: The lock that the datasets must fit, as for `load`.
        opened: The members, opened by the caller with samplers and transforms of the caller. By default the members are
            opened with the sampler and the transforms that the arguments name.
        **options: Other arguments of `ReplayBuffer`, for the mixture: `prefetch`, `transform`, `pin_memory`, and
            `interleave` of `Mixture`.

    Raises:
        InvalidArgumentError: If arguments are mutually exclusive, or the datasets are incompatible. The message
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
        raise InvalidArgumentError(f"temperature is {temperature}, expected a number above 0, without weights")
    _check_options(options)
    if keys is not None and len(datasets) < len(parsed):
        raise InvalidArgumentError(
            "keys choose the fields of datasets that are opened here, and some members are buffers",
            hint="choose the fields of the buffers, as with dataset.select(keys)",
        )
    chosen: dict[str, Any] = {"use": sampler} if isinstance(sampler, str) else {**(sampler or {})}
    if "num_slices" in chosen and "slice_len" not in chosen:
        chosen["slice_len"] = _steps_per_slice(chosen.pop("num_slices"), batch_size)
    if opened is None:
        opened = [
            member
            if isinstance(member, ReplayBuffer)
            else _open_member(member, chosen, download=download, home=home, keys=keys, lock=lock)
            for member in parsed
        ]
    if "slice_len" in chosen:
        _check_slices(
            chosen,
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
        unit=int(chosen.get("slice_len", 1)),
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
        path: A TOML file with a table ``[[member]]`` for each dataset (the fields of `Member`, where transforms may
            also be tables ``[[member.transform]]``) and arguments of `mixture` at the top level.
        **options: Arguments of `mixture` that override the arguments in the file.

    Raises:
        InvalidArgumentError: If the file is invalid. The message lists all problems. Otherwise as for `mixture`.
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
            f"{len(present)} of {count} members have a {name}{f', and {name}s were passed, too' if weights else ''}, "
            f"expected a {name} for every member, or {name}s"
        )
    return present


def _check_options(options: Mapping[str, Any]) -> None:
    known = {**signature(Mixture.__init__).parameters, **signature(ReplayBuffer.__init__).parameters}
    if unknown := sorted(options.keys() - known.keys()):
        similar = difflib.get_close_matches(unknown[0], [*known, *signature(mixture).parameters], n=3)
        raise WrongTypeError(
            f"a mixture has no argument {unknown[0]!r}",
            hint=f"did you mean {', '.join(similar)}?" if similar else "help(mixture) shows all arguments",
        )


def _steps_per_slice(num_slices: Any, batch_size: int | None) -> int:
    """Return the number of steps of each of the slices that are to be in a batch."""
    check(
        size_problems(num_slices=num_slices)
        or unless(
            batch_size is not None and batch_size % num_slices == 0,
            f"num_slices is {num_slices} and batch_size is {batch_size}, expected a multiple of num_slices",
        )
    )
    return cast("int", batch_size) // int(num_slices)


def _open_member(
    member: Member,
    sampler: Mapping[str, Any],
    *,
    download: bool,
    home: Path | None,
    keys: Any,
    lock: Path | str | bool | None,
) -> BaseDatasetExperienceReplay:
    options: dict[str, Any] = {
        "transform": _make_transforms(member),
        "sampler": _sampler_from_options(sampler),
        "keys": keys,
        "lock": lock,
    }
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
        problems.append(f"batch_size is {batch_size}, expected a multiple of {steps}, the slice_len")
    for name, lengths in ((name, rb.episodes.lengths) for name, rb in buffers.items()):
        if sampler.get("strict_length", True):
            if lengths.max() < steps:
                problems.append(f"slice_len is {steps}, but the longest episode of {name} has {lengths.max()} steps")
        elif lengths.min() < steps and not sampler.get("pad_output", False):
            problems.append(
                f"slice_len is {steps}, but the shortest episode of {name} has {lengths.min()} steps, expected "
                "pad_output=True or strict_length=True, because slices of a mixture have equal lengths"
            )
    if sampler.get("span", False) and not sampler.get("pad_output", False):
        problems.append(
            f"span is {sampler['span']!r}, expected pad_output=True, because slices of a mixture have equal lengths"
        )
    check(problems)


def _make_transforms(member: Member) -> list[Any]:
    parsed = [_parse_transform(transform, member) for transform in member.transforms]
    check_batch_transforms(parsed, member.dataset)
    classes = transforms_by_name()
    steps = (TransformStep.from_arguments(name, classes[name], positional, named) for name, positional, named in parsed)
    # The numbers of a step are float64, which would widen integers of a batch.
    return [step.transform.to(torch.get_default_dtype()) for step in steps]


def _parse_transform(spec: Any, member: Member) -> Arguments:
    if isinstance(spec, str):
        return parse_inline(spec)
    if isinstance(spec, Mapping) and isinstance(spec.get("use"), str):
        return spec["use"], (), {key: value for key, value in spec.items() if key != "use"}
    raise InvalidArgumentError(
        f'a transform of {member.dataset} is {spec!r}, expected "resize:64", or a table with use = "resize"'
    )


def _sampler_from_options(options: Mapping[str, Any]) -> Sampler | None:
    if not options:
        return None
    arguments = dict(options)
    use = arguments.pop("use", None)
    if use not in _SAMPLERS:
        raise InvalidArgumentError(
            f"sampler uses {use!r}, expected {', '.join(_SAMPLERS)}", hint="for another sampler, pass buffers"
        )
    try:
        return _SAMPLERS[use](**arguments)
    except TypeError as error:
        raise InvalidArgumentError(f"the sampler {use} cannot be created: {error}") from error
