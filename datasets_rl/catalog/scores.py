"""Normalized scores: returns scaled so that a random policy scores 0 and an expert scores 1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl import store
from datasets_rl.catalog.listing import info
from datasets_rl.errors import Argument, Call, InvalidArgumentError, NotADatasetError, Remedy
from datasets_rl.format.manifest import Manifest
from datasets_rl.settings import Settings
from datasets_rl.sources import Score, find, get_source
from datasets_rl.store.find import locate

_OWN = Remedy("give your own returns with {} and {}", Argument("low"), Argument("high"))


def normalized_score(
    dataset: str | Path | None,
    returns: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    percent: bool = False,
    root: Path | str | None = None,
    settings: Settings | None = None,
) -> float | NDArray[np.float64]:
    """Return the normalized scores of returns, by the reference scores of a dataset.

        score = (return - low) / (high - low)

    where `low` is the return of a random policy and `high` the return of an expert, as published by the authors of the
    dataset. For D4RL (Fu et al. 2020, arXiv:2004.07219), these are `REF_MIN_SCORE` and `REF_MAX_SCORE` in ``infos.py``,
    the same for all versions of a task, and this function is `get_normalized_score`. Papers report scores times 100, as
    with `percent`.

        >>> from datasets_rl import normalized_score
        >>> normalized_score("d4rl/hopper-medium-v2", [-20.272305, 3234.3]).tolist()
        [0.0, 1.0]

    Args:
        dataset: An id with the source, ``d4rl/hopper-medium-v2``, the folder of a stored dataset, or the file of a
            mixture of datasets with the same reference scores. None if `low` and `high` are given.
        returns: Undiscounted returns of whole episodes: a number, or a sequence, array or tensor of any shape.
        low: The return with the score 0, instead of the published return.
        high: The return with the score 1, instead of the published return.
        percent: Whether to multiply the scores by 100.
        root: The folder of the source, for reference scores in a stored dataset, by default ``<RLDS_HOME>/<source>``.
        settings: The settings, by default from the environment.

    Returns:
        A float for a number, else a float64 array of the shape of `returns`.

    Raises:
        UnknownIdError: If there is no such dataset.
        InvalidArgumentError: If the dataset has no reference scores, `low` is not below `high`, or `returns` are not
            numbers.
    """
    score = reference_score(dataset, low=low, high=high, root=root, settings=settings)
    values = _as_array(returns)
    scaled = (values - score.low) / (score.high - score.low) * (100 if percent else 1)
    return float(scaled) if values.ndim == 0 else scaled


def normalized_cost(costs: Any, budget: float) -> float | NDArray[np.float64]:
    """Return the costs of whole episodes over a budget: at most 1 if a policy keeps the budget.

        score = (cost + e) / (budget + e)        e = 1 for a budget of 0, else 0

    This is the cost of `get_normalized_score` of DSRL (Liu et al. 2024, arXiv:2306.09303). The tables of the paper use
    the budgets 20, 40 and 80, and for MetaDrive 10, 20 and 40.

        >>> from datasets_rl.catalog.scores import normalized_cost
        >>> normalized_cost(30, budget=20)
        1.5

    Args:
        costs: Undiscounted sums of the costs of whole episodes: a number, or a sequence, array or tensor of any shape.
        budget: The maximum cost of an episode.

    Returns:
        A float for a number, else a float64 array of the shape of `costs`.

    Raises:
        InvalidArgumentError: If `budget` is negative, or `costs` are not numbers.
    """
    if not budget >= 0:
        raise InvalidArgumentError(f"budget is {budget:g}, expected a number >= 0")
    values = _as_array(costs)
    more = float(budget == 0)
    scaled = (values + more) / (budget + more)
    return float(scaled) if values.ndim == 0 else scaled


def reference_score(
    dataset: str | Path | None,
    *,
    low: float | None = None,
    high: float | None = None,
    root: Path | str | None = None,
    settings: Settings | None = None,
) -> Score:
    """Return the returns with normalized scores 0 and 1, from the catalog or from the stored dataset.

    Datasets of Minari and of the user state these returns in the metadata, so that the dataset must be stored.

    Args:
        dataset: An id with the source, the folder of a stored dataset, or the file of a mixture. None if `low` and `high`
            are given.
        low: The return with the score 0, instead of the published return.
        high: The return with the score 1, instead of the published return.
        root: The folder of the source, by default ``<RLDS_HOME>/<source>``.
        settings: The settings, by default from the environment.

    Raises:
        UnknownIdError: If there is no such dataset.
        InvalidArgumentError: If the dataset has no reference scores, or `low` is not below `high`.
    """
    if low is None or high is None:
        if dataset is None:
            raise InvalidArgumentError("without a dataset, low and high are both needed")
        published = _published_score(dataset, root, settings)
        if low is None and high is None:
            return published
        low, high = (published.low if low is None else low), (published.high if high is None else high)
        score = Score(low, high, f"{published.origin}, and the return that you gave")
    else:
        score = Score(low, high, "the returns that you gave")
    if not score.low < score.high:
        raise InvalidArgumentError(f"low is {score.low:g} and high is {score.high:g}, expected low below high")
    return score


@dataclass(frozen=True, slots=True)
class ScoreInterval:
    """An average of scores with a confidence interval."""

    value: float
    low: float
    high: float
    confidence: float
    """The nominal probability of the interval."""


def interquartile_mean(scores: Any, *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0) -> ScoreInterval:
    """Return the interquartile mean of scores with a bootstrap confidence interval, as rliable does.

        >>> interquartile_mean(normalized_score("demo/pendulum", returns, percent=True))
        ScoreInterval(value=71.2, low=63.0, high=80.1, confidence=0.95)

    The interquartile mean is the mean of the middle half of all scores: the lowest and the highest quarter, rounded down,
    are left out. This mean is as robust as a median, and uses more of the data. The interval is from the percentile
    bootstrap, stratified by task: runs are drawn with replacement for each task (Agarwal et al. 2021, arXiv:2108.13264).

    Args:
        scores: Scores of runs with different seeds, [R], or [R, T] for T tasks. The score of a run is the mean over
            episodes: an interquartile mean of episodes would call a policy perfect that fails in a quarter of episodes.
        confidence: The probability of the interval.
        resamples: Number of bootstrap samples.
        seed: Seed of the bootstrap: the same scores give the same interval.

    Raises:
        InvalidArgumentError: If there are no scores, some are not finite, or an argument is out of range.
    """
    values = _as_array(scores)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        raise InvalidArgumentError(
            f"scores have shape {list(np.shape(scores))}, expected finite scores of runs, [R] or [R, T], at least 1"
        )
    if not 0 < confidence < 1 or resamples < 1:
        raise InvalidArgumentError(
            f"confidence is {confidence} and resamples is {resamples}, expected 0 < confidence < 1, and at least 1"
        )
    drawn = np.random.default_rng(seed).integers(len(values), size=(resamples, *values.shape))
    means = _interquartile_means(np.take_along_axis(values[None], drawn, axis=1).reshape(resamples, -1))
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return ScoreInterval(float(_interquartile_means(values.reshape(1, -1))[0]), float(low), float(high), confidence)


def _interquartile_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the interquartile mean of each row of values [N, M] as [N]."""
    cut = values.shape[1] // 4
    means: NDArray[np.float64] = np.sort(values, axis=1)[:, cut : values.shape[1] - cut].mean(axis=1)
    return means


def _published_score(dataset: str | Path, root: Path | str | None, settings: Settings | None) -> Score:
    if str(dataset).endswith(".toml"):
        return _mixture_score(Path(dataset), settings)
    dataset = store.id_or_path(dataset)
    entry = None if isinstance(dataset, Path) else find(dataset)
    if entry is not None and entry.score is not None and "score" not in get_source(entry.source).restated:
        return entry.score
    try:
        stored = Manifest.read(locate(dataset, root=root, settings=settings)).score
    except NotADatasetError:
        if entry is None:
            raise
        if entry.score is not None:
            return entry.score
        hint = Remedy("{}, or see whether the dataset has reference scores: {}", _OWN, Call("download", entry.id))
        raise InvalidArgumentError(f"{dataset} has no reference scores in the catalog", hint=hint) from None
    if stored:
        return Score(**stored)
    if entry is not None and entry.score is not None:
        return entry.score
    raise InvalidArgumentError(f"{dataset} has no reference scores: the authors published no scores", hint=_OWN)


def _mixture_score(path: Path, settings: Settings | None) -> Score:
    mixture = info(path, settings=settings)
    if mixture.score is None:
        each = "; ".join(
            f"{member.id}: " + ("none" if member.score is None else f"{member.score.low:g} and {member.score.high:g}")
            for member in (item.info for item in mixture.members)
        )
        raise InvalidArgumentError(f"the members of {path} do not share reference scores: {each}", hint=_OWN)
    return mixture.score


def _as_array(returns: Any) -> NDArray[np.float64]:
    # NumPy cannot convert a tensor that requires gradients or is on a device. A method name avoids importing torch.
    for method in ("detach", "cpu"):
        returns = getattr(returns, method, lambda same=returns: same)()
    try:
        return np.asarray(returns, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"returns are {type(returns).__name__} {returns!r:.60}, expected numbers") from error
