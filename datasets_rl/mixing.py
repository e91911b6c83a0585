"""From several datasets to one buffer that mixes them, by one call or from a file.

    # mix.toml
    batch_size = 256
    [[member]]
    dataset = "d4rl/hopper-medium-v2"      # an id, or a folder, seen from this file
    weight = 0.7
    transforms = ["reward_scaling:0,0.1"]
    [[member]]
    dataset = "d4rl/hopper-expert-v2"
    weight = 0.3

In a call, members may be buffers too.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from datasets_rl import sources
from datasets_rl.buffers.keys import Missing
from datasets_rl.buffers.mixture import Mixture
from datasets_rl.buffers.replay import ReplayBuffer
from datasets_rl.datasets import BaseDatasetExperienceReplay, dataset_class, open_dataset
from datasets_rl.disk import MANIFEST_FILE
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.naming import make
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.preprocessing.transforms import TransformStep
from datasets_rl.read.toml import parse_toml
from datasets_rl.samplers import (
    RandomSampler,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)

__all__ = ["Member", "load_mixture", "mixture", "mixture_toml"]

_SAMPLERS: Mapping[str, type[Sampler]] = {
    "random": RandomSampler,
    "without_replacement": SamplerWithoutReplacement,
    "slices": SliceSampler,
    "slices_without_replacement": SliceSamplerWithoutReplacement,
}
_SETTINGS: Mapping[str, tuple[type, ...]] = {
    "anneal": (int,),
    "batch_size": (int,),
    "exact": (bool,),
    "missing": (str,),
    "sampler": (dict,),
    "temperature": (int, float),
}
_OF_MEMBER: Mapping[str, tuple[type, ...]] = {
    "dataset": (str,),
    "weight": (int, float),
    "final_weight": (int, float),
    "transforms": (list,),
    "transform": (list,),
}


_NAMES = {bool: "true or false", dict: "a table", float: "a number", int: "an integer", list: "a list", str: "a text"}


@dataclass(frozen=True)
class Member:
    """A dataset of a mixture."""

    dataset: str
    """Its id, or its folder."""
    weight: float | None = None
    """Its share, in the scale of the others; all members have one, or none."""
    final_weight: float | None = None
    """What its share moves to; all members have one, or none."""
    transforms: Sequence[str | Mapping[str, Any]] = ()
    """What its batches pass, as recipes have it: ``"resize:64"``, or ``{"use": "resize", "w": 64}``."""


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
        members: Ids, folders, `Member`, or buffers with samplers and transforms of their own.
        weights: Their shares, in any scale. By default all have the same; see `temperature`.
        temperature: T makes the shares those of the sizes, steps ** (1 / T): with 1 every step is equally likely,
            with infinity every dataset (Raffel et al. 2020, section 3.5.2).
        final_weights: Shares that those of the batches move to, in a straight line.
        anneal: Batches until they are there.
        exact: Every batch has its shares but for less than one step, and what is missing is carried on; False draws the
            dataset of each step by chance.
        sampler: How steps are drawn from each dataset: ``{"use": "slices", "slice_len": 16}``, or "random",
            "without_replacement", "slices_without_replacement", each with the arguments of its class.
        batch_size: Steps of a batch.
        missing: What becomes of keys that only some datasets have: "refuse", "drop" or "zero".
        download: Whether datasets that are not there are downloaded.
        home: Where datasets lie, instead of RLDS_HOME.
        **options: Those of `ReplayBuffer` that are left, for the mixture: `prefetch`, `transform`, `pin_memory`.

    Raises:
        InvalidArgumentError: If arguments exclude each other, or the datasets do not fit together; with a table of the keys.
        UnknownIdError: If there is no such dataset.
    """
    given = [one if isinstance(one, (Member, ReplayBuffer)) else Member(os.fspath(one)) for one in members]
    own = [one for one in given if isinstance(one, Member)]
    weights = _weights(weights, [one.weight for one in own], len(given), "weight")
    final_weights = _weights(final_weights, [one.final_weight for one in own], len(given), "final_weight")
    if temperature is not None and (weights is not None or not temperature > 0):
        raise InvalidArgumentError(f"temperature is {temperature}; expected a number above 0, and no weights beside it")
    opened = [
        one if isinstance(one, ReplayBuffer) else _opened(one, sampler, download=download, home=home) for one in given
    ]
    if sampler is not None and "slice_len" in sampler:
        _check_no_slices(
            sampler,
            batch_size,
            {one.dataset: rb for one, rb in zip(given, opened, strict=True) if isinstance(one, Member)},
        )
    if temperature is not None:
        most = max(map(len, opened))
        weights = [(len(one) / most) ** (1 / temperature) for one in opened]
    return Mixture(
        *opened,
        p=weights,
        exact=exact,
        final_p=final_weights,
        anneal=anneal,
        unit=int((sampler or {}).get("slice_len", 1)),
        names=[
            one.dataset if isinstance(one, Member) else getattr(one, "dataset_id", f"buffer {number}")
            for number, one in enumerate(given)
        ],
        missing=missing,
        batch_size=batch_size,
        **options,
    )


def load_mixture(path: Path | str, **options: Any) -> Mixture:
    """Mix the datasets that a file names.

    Args:
        path: A TOML file with a table ``[[member]]`` for each dataset (the fields of `Member`; transforms may be tables
            ``[[member.transform]]`` too) and the arguments of `mixture` that stand at its head.
        **options: Arguments of `mixture`, before those of the file.

    Raises:
        InvalidArgumentError: If the file is not as it should be; all problems at once. Otherwise as `mixture` does.
    """
    path = Path(path).expanduser()
    try:
        document = parse_toml(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"the mixture {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgumentError(
            f"the mixture {path} cannot be read as TOML: {error}", hint="`rlds mix` writes one that can be read"
        ) from error
    tables = document.pop("member", None)
    problems = _problems(document, _SETTINGS, "it")
    if not isinstance(tables, list) or not tables:
        problems.append("it needs [[member]] tables, each with dataset = ...")
        tables = []
    members = [_member(table, number, path.parent, problems) for number, table in enumerate(tables)]
    if problems:
        raise InvalidArgumentError(f"the mixture {path}: {'; '.join(problems)}")
    return mixture([one for one in members if one is not None], **{**document, **options})


def mixture_toml(members: Sequence[Member], settings: Mapping[str, Any]) -> str:
    """Write a mixture as a file has it.

    Args:
        members: Its datasets.
        settings: Those at the head of the file.
    """
    lines = [f"{name} = {_toml(value)}" for name, value in settings.items() if value is not None]
    for member in members:
        entries = {one.name: getattr(member, one.name) for one in fields(member)}
        lines += [
            "",
            "[[member]]",
            *(f"{name} = {_toml(value)}" for name, value in entries.items() if value is not None and value != ()),
        ]
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{name} = {_toml(one)}' for name, one in value.items())} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def _member(table: Any, number: int, base: Path, problems: list[str]) -> Member | None:
    table = dict(table) if isinstance(table, Mapping) else {}
    wrong = _problems(table, _OF_MEMBER, f"member {number}")
    if "dataset" not in table:
        wrong.append(f"member {number} has no dataset = ...")
    if wrong:
        problems += wrong
        return None
    transforms = (*table.pop("transforms", ()), *table.pop("transform", ()))
    beside = base / Path(table["dataset"]).expanduser()
    if (beside / MANIFEST_FILE).is_file():
        table["dataset"] = str(beside)
    return Member(**table, transforms=transforms)


def _problems(table: Mapping[str, Any], known: Mapping[str, tuple[type, ...]], what: str) -> list[str]:
    """Say which entries a table may not have, or not with such a value."""
    odd = sorted(table.keys() - known.keys())
    problems = [f"{what} has {', '.join(odd)}; expected {', '.join(known)}"] if odd else []
    for key in sorted(table.keys() & known.keys()):
        value, kinds = table[key], known[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(_NAMES[kind] for kind in kinds)
            problems.append(f"{what} has {key} = {value!r}; expected {wanted}")
    return problems


def _weights(
    given: Sequence[float] | None, own: Sequence[float | None], count: int, name: str
) -> Sequence[float] | None:
    """Return the shares that were given for all, or by the members themselves."""
    there = [one for one in own if one is not None]
    if not there:
        return given
    if given is not None or len(there) != count:
        raise InvalidArgumentError(
            f"{len(there)} of {count} members have a {name}{f', and {name}s were given too' if given else ''}; expected all, once"
        )
    return there


def _opened(
    member: Member, sampler: Mapping[str, Any] | None, *, download: bool, home: Path | None
) -> BaseDatasetExperienceReplay:
    options: dict[str, Any] = {"transform": _transforms(member), "sampler": _sampler(sampler)}
    folder = Path(member.dataset).expanduser()
    if (folder / MANIFEST_FILE).is_file():
        return open_dataset(folder, **options)
    head, name = sources.split_id(member.dataset)
    sources.find(member.dataset)
    if home is not None:
        options["root"] = home / head
    return dataset_class(head)(name, download=download, **options)


def _check_no_slices(sampler: Mapping[str, Any], batch_size: int | None, opened: Mapping[str, Any]) -> None:
    """Let slices pass that batches can be made of."""
    steps, problems = int(sampler["slice_len"]), []
    if batch_size is not None and batch_size % steps:
        problems.append(f"batch_size is {batch_size}; expected a multiple of {steps}, the length of slices")
    if sampler.get("strict_length", True):
        longest = {name: int(rb.episodes.lengths.max()) for name, rb in opened.items()}
        problems += [
            f"slice_len is {steps}, and the longest episode of {name} has {most} steps"
            for name, most in longest.items()
            if most < steps
        ]
    if problems:
        raise InvalidArgumentError("; ".join(problems))


def _transforms(member: Member) -> list[Any]:
    steps = [_step(one, member) for one in member.transforms]
    whole = sorted({step.use() for step in steps if not isinstance(step, TransformStep)})
    if whole:
        raise InvalidArgumentError(
            f"{member.dataset} was to pass {', '.join(whole)}: they need whole episodes, and batches are none",
            hint="put the dataset through them first: rlds preprocess",
        )
    return [step.transform for step in steps if isinstance(step, TransformStep)]


def _step(given: Any, member: Member) -> Any:
    if isinstance(given, str):
        return Recipe.inline([given]).steps[0]
    if isinstance(given, Mapping) and isinstance(given.get("use"), str):
        return make(given["use"], (), {key: value for key, value in given.items() if key != "use"})
    raise InvalidArgumentError(
        f'{member.dataset} was to pass {given!r}; expected "resize:64", or a table with use = "resize"'
    )


def _sampler(wanted: Mapping[str, Any] | None) -> Sampler | None:
    if wanted is None:
        return None
    arguments = dict(wanted)
    use = arguments.pop("use", None)
    if use not in _SAMPLERS:
        raise InvalidArgumentError(
            f"sampler uses {use!r}; expected {', '.join(_SAMPLERS)}", hint="give buffers for other ones"
        )
    try:
        return _SAMPLERS[use](**arguments)
    except TypeError as error:
        raise InvalidArgumentError(f"the sampler {use} cannot be made: {error}") from error
