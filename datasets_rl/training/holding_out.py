"""Which episodes are held out for a validation loss: a share of each member, with copies on one side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import Argument, InvalidArgumentError, Remedy
from datasets_rl.format.copies import first_copies_among, joined, telling_fingerprints
from datasets_rl.training.data import Episodes, TrainingData

_NONE = Remedy("hold out no episodes: {}", Argument("validation", 0))


class HeldOut(NamedTuple):
    """The episodes of a run, divided."""

    validating: list[Episodes]
    """The numbers of the held-out episodes of each member, [*]."""
    training: list[Episodes]
    """The numbers of the other episodes of each member, [*]."""
    copies: int
    """How many of the held-out episodes have copies, which are held out, too."""


def hold_out(data: TrainingData, share: float, seed: int) -> HeldOut:
    """Divide the episodes of each member at random, with all copies of an episode in all members on one side.

    Args:
        data: The data.
        share: The share of the episodes of each member that is held out, at least. The last episode has all copies with it.
        seed: The seed of the order in which episodes are held out.

    Raises:
        InvalidArgumentError: If no episode of a member is left to train on, or none can be held out.
    """
    orders = [
        np.random.default_rng([seed, number]).permutation(np.unique(member.episodes.numbers))
        for number, member in enumerate(data.members)
    ]
    groups = _groups_of_copies(data, orders)
    sizes = np.bincount(np.concatenate(groups))
    held_out = np.zeros(len(sizes), np.bool_)
    for name, group in zip(data.names, groups, strict=True):
        _hold_out_member(name, group, max(1, round(share * len(group))), held_out)
    chosen = [held_out[group] for group in groups]
    for name, one in zip(data.names, chosen, strict=True):
        if one.all():
            raise InvalidArgumentError(
                f"all {len(one):,} episodes of {name} would be held out, with copies in other members: no episode of "
                f"{name} is left to train on",
                hint=_NONE,
            )
    copies = sum(int((sizes[group[one]] > 1).sum()) for group, one in zip(groups, chosen, strict=True))
    parts = [*zip(orders, chosen, strict=True)]
    return HeldOut([order[one] for order, one in parts], [order[~one] for order, one in parts], copies)


def _hold_out_member(name: str, group: NDArray[np.int64], count: int, held_out: NDArray[np.bool_]) -> None:
    """Hold out groups of a member, in the order of the episodes, until enough of its episodes are held out.

    Args:
        name: The name of the member, for messages.
        group: The group of each episode, in the order in which episodes are held out, [n].
        count: How many episodes are held out, at least.
        held_out: Which groups are held out, which this function sets.
    """
    if count >= len(group):
        raise InvalidArgumentError(
            f"{name} has {len(group):,} episodes, of which {count:,} would be held out: no episode is left to train on",
            hint=_NONE,
        )
    groups, turns, sizes = np.unique(group, return_index=True, return_counts=True)
    already = held_out[groups]
    by_turn = np.argsort(np.where(already, -1, turns), kind="stable")
    last = max(int(np.searchsorted(np.cumsum(sizes[by_turn]), count)), int(already.sum()) - 1)
    chosen = by_turn[: last + 1]
    if len(chosen) == len(groups) and not already.all():
        chosen = chosen[:-1]
    if not len(chosen):
        raise InvalidArgumentError(
            f"all {len(group):,} episodes of {name} are copies of one episode: none can be held out", hint=_NONE
        )
    held_out[groups[chosen]] = True


def _groups_of_copies(data: TrainingData, orders: Sequence[Episodes]) -> list[NDArray[np.int64]]:
    """Return the group of copies of each episode of each member, [n] each, in given orders. Groups are numbered from 0."""
    tables = [member.stored.episodes.numbers for member in data.members]
    starts = np.cumsum([0, *(table.max() + 1 for table in tables)])
    # An episode of which several parts are stored is one episode.
    numbers = np.concatenate([start + table for start, table in zip(starts, tables, strict=False)])
    firsts = joined([numbers, first_copies_among([telling_fingerprints(member.stored) for member in data.members])])
    stored, places = np.unique(numbers, return_index=True)
    labels = [
        firsts[places[np.searchsorted(stored, start + order)]] for start, order in zip(starts, orders, strict=False)
    ]
    compact = np.unique(np.concatenate(labels), return_inverse=True)[1].reshape(-1)
    return np.split(compact, np.cumsum([len(order) for order in orders])[:-1])
