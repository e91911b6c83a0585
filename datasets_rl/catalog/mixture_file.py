"""The file of a mixture: a table for each dataset, and the arguments of `mixture`.

# mix.toml
batch_size = 256
[[member]]
dataset = "d4rl/hopper-medium-v2"      # an id, or a folder relative to this file
weight = 0.7
transforms = ["reward_scaling:0,0.1"]
[[member]]
dataset = "d4rl/hopper-expert-v2"
weight = 0.3
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from datasets_rl import store
from datasets_rl.disk import expand_home
from datasets_rl.errors import Call, InvalidArgumentError, Remedy
from datasets_rl.read.toml import parse_toml, toml_value

_SETTINGS: Mapping[str, tuple[type, ...]] = {
    "anneal": (int,),
    "batch_size": (int,),
    "exact": (bool,),
    "interleave": (bool,),
    "keys": (list,),
    "missing": (str,),
    "sampler": (dict, str),
    "temperature": (int, float),
}
_MEMBER_FIELDS: Mapping[str, tuple[type, ...]] = {
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
    """Id or folder of the dataset."""
    weight: float | None = None
    """Share of the dataset, relative to the other members. All members or none have a share."""
    final_weight: float | None = None
    """Final share after annealing. All members or none have a final share."""
    transforms: Sequence[str | Mapping[str, Any]] = ()
    """Transforms of batches, in the notation of recipes: ``"resize:64"``, or ``{"use": "resize", "w": 64}``."""


def read_mixture(path: Path) -> tuple[list[Member], dict[str, Any]]:
    """Return the members in the file of a mixture, and the arguments of `mixture`, without opening a dataset.

    Raises:
        InvalidArgumentError: If the file cannot be read, is not TOML, or is invalid. The message lists all problems.
    """
    document = _read_document(path)
    tables = document.pop("member", None)
    problems = _table_problems(document, _SETTINGS, "the file")
    if not isinstance(tables, list) or not tables:
        problems.append("the file has no [[member]] tables, expected at least 1, with dataset = ...")
        tables = []
    members = [_parse_member(table, number, path.parent, problems) for number, table in enumerate(tables)]
    if problems:
        raise InvalidArgumentError(f"the mixture {path}: {'; '.join(problems)}")
    return [member for member in members if member is not None], document


def _read_document(path: Path) -> dict[str, Any]:
    hint = Remedy("`{}` makes a valid file", Call("catalog.mixture_file.mixture_toml", ...))
    try:
        return parse_toml(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"the mixture {path} cannot be read: {error.strerror}", hint=hint) from error
    except ValueError as error:
        raise InvalidArgumentError(f"the mixture {path} is not valid TOML: {error}", hint=hint) from error


def mixture_toml(members: Sequence[Member], settings: Mapping[str, Any]) -> str:
    """Return a mixture as the text of a TOML file.

    Args:
        members: The datasets.
        settings: The arguments of `mixture` at the top level of the file.
    """
    lines = [f"{name} = {toml_value(value)}" for name, value in settings.items() if value is not None]
    for member in members:
        entries = {field.name: getattr(member, field.name) for field in fields(member)}
        lines += [
            "",
            "[[member]]",
            *(f"{name} = {toml_value(value)}" for name, value in entries.items() if value is not None and value != ()),
        ]
    return "\n".join(lines).lstrip("\n") + "\n"


def _parse_member(table: Any, number: int, base: Path, problems: list[str]) -> Member | None:
    table = dict(table) if isinstance(table, Mapping) else {}
    member_problems = _table_problems(table, _MEMBER_FIELDS, f"member {number}")
    if "dataset" not in table:
        member_problems.append(f"member {number} has no dataset = ...")
    if member_problems:
        problems += member_problems
        return None
    transforms = (*table.pop("transforms", ()), *table.pop("transform", ()))
    table["dataset"] = _absolute_dataset(table["dataset"], base)
    return Member(**table, transforms=transforms)


def _table_problems(table: Mapping[str, Any], allowed: Mapping[str, tuple[type, ...]], name: str) -> list[str]:
    """Return the problems of a table: unknown entries, and values of the wrong type."""
    unknown = sorted(table.keys() - allowed.keys())
    problems = [f"{name} has {', '.join(unknown)}, expected {', '.join(allowed)}"] if unknown else []
    for key in sorted(table.keys() & allowed.keys()):
        value, types = table[key], allowed[key]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            expected = " or ".join(_NAMES[kind] for kind in types)
            problems.append(f"{name} has {key} = {value!r}, expected {expected}")
    return problems


def _absolute_dataset(name: str, base: Path) -> str:
    """Return the absolute folder of a stored dataset, given relative to the folder of the mixture, or else the id."""
    folder = base / expand_home(name)
    is_folder = not isinstance(store.id_or_path(name), str) or store.paths_of(folder).exists
    return os.path.normpath(Path.cwd() / folder) if is_folder else name
