"""The file of a mixture: a table for each dataset, and the arguments of `mixture`.

batch_size = 256
[[member]]
dataset = "demo/pendulum"              an id, or a folder that is relative to the file
weight = 0.7
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from datasets_rl import store
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.read.toml import parse_toml
from datasets_rl.remedy import Call, Remedy

__all__ = ["NamedMember", "member_dataset", "mixture_members", "read_mixture_file"]


class NamedMember(NamedTuple):
    """A dataset of a mixture, which may not be stored."""

    dataset: str | Path
    """An id, or the folder of a stored dataset."""
    weight: float | None


def read_mixture_file(path: Path) -> dict[str, Any]:
    """Return the document of the file of a mixture; its content is not checked.

    Raises:
        InvalidArgumentError: If the file cannot be read, or is not TOML.
    """
    hint = Remedy("`{}` makes a valid one", Call("datasets.mixing.mixture_toml", ...))
    try:
        return parse_toml(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"the mixture {path} cannot be read: {error.strerror}", hint=hint) from error
    except ValueError as error:
        raise InvalidArgumentError(f"the mixture {path} is not valid TOML: {error}", hint=hint) from error


def mixture_members(path: Path) -> list[NamedMember]:
    """Return the datasets of a mixture and their weights, without opening them.

    Raises:
        InvalidArgumentError: If the file cannot be read, is not TOML, or names no datasets.
    """
    tables = read_mixture_file(path).get("member")
    tables = tables if isinstance(tables, list) else []
    named = [one for one in tables if isinstance(one, Mapping) and isinstance(one.get("dataset"), str)]
    if not named or len(named) < len(tables):
        raise InvalidArgumentError(f"{path} is not the file of a mixture; expected [[member]] with a dataset each")
    return [NamedMember(member_dataset(one["dataset"], path.parent), one.get("weight")) for one in named]


def member_dataset(name: str, base: Path) -> str | Path:
    """Return the folder of a stored dataset, which may be relative to the folder of the mixture, or else the id."""
    folder = base / Path(name).expanduser()
    is_folder = not isinstance(store.id_or_path(name), str) or store.paths_of(folder).exists
    return Path(os.path.normpath(folder)) if is_folder else name
