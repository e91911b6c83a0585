"""Normalized scores: returns scaled so that a random policy scores 0 and an expert scores 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl import locating
from datasets_rl.errors import InvalidArgumentError, NotADatasetError
from datasets_rl.format.manifest import Manifest
from datasets_rl.remedy import Call, Remedy
from datasets_rl.settings import Settings
from datasets_rl.sources import Score, find


def normalized_score(
    dataset: str | Path, returns: Any, *, root: Path | str | None = None, settings: Settings | None = None
) -> float | NDArray[np.float64]:
    """Return the normalized scores of returns, by the reference scores of a dataset.

        score = (return - low) / (high - low)

    where `low` is the return of a random policy and `high` that of an expert, as the authors of the dataset published
    them (for D4RL: Fu et al. 2020, arXiv:2004.07219, `REF_MIN_SCORE` and `REF_MAX_SCORE` in its ``infos.py``; they are
    the same for all versions of a task). This is `get_normalized_score` of D4RL. Papers report this number times 100;
    here it is not multiplied.

    Args:
        dataset: An id with its source, ``d4rl/hopper-medium-v2``, or the folder of a stored dataset.
        returns: Undiscounted returns of whole episodes: a number, or a sequence, array or tensor of any shape.
        root: The folder of the source, for reference scores in the dataset itself; by default ``<RLDS_HOME>/<source>``.
        settings: The settings; by default those of the environment.

    Returns:
        A float for a number, else a float64 array of the shape of `returns`.

    Raises:
        UnknownIdError: If there is no such dataset.
        InvalidArgumentError: If it has no reference scores, or `returns` are not numbers.
    """
    score = reference_score(dataset, root=root, settings=settings)
    values = _as_array(returns)
    scaled = (values - score.low) / (score.high - score.low)
    return float(scaled) if values.ndim == 0 else scaled


def reference_score(dataset: str | Path, *, root: Path | str | None = None, settings: Settings | None = None) -> Score:
    """Return the returns with normalized scores 0 and 1, from the catalog or else from the stored dataset.

    Datasets of Minari state them in their own metadata, so that they are known once the dataset is downloaded.

    Args:
        dataset: An id with its source, or the folder of a stored dataset.
        root: The folder of the source; by default ``<RLDS_HOME>/<source>``.
        settings: The settings; by default those of the environment.

    Raises:
        UnknownIdError: If there is no such dataset.
        InvalidArgumentError: If it has no reference scores.
    """
    catalog_score = None if isinstance(dataset, Path) else find(dataset).score
    if catalog_score is not None:
        return catalog_score
    try:
        stored = Manifest.read(locating.locate(dataset, root=root, settings=settings)).score
    except NotADatasetError:
        if isinstance(dataset, Path):
            raise
        hint = Remedy("some datasets bring their own: {}", Call("download", dataset))
        raise InvalidArgumentError(f"{dataset} has no reference scores in the catalog", hint=hint) from None
    if not stored:
        raise InvalidArgumentError(f"{dataset} has no reference scores: its authors published none")
    return Score(**stored)


def _as_array(returns: Any) -> NDArray[np.float64]:
    # NumPy cannot convert a tensor that requires gradients or is on a device. By method name, to avoid importing torch.
    for method in ("detach", "cpu"):
        returns = getattr(returns, method, lambda same=returns: same)()
    try:
        return np.asarray(returns, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"returns are {type(returns).__name__} {returns!r:.60}; expected numbers") from error
