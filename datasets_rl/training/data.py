"""The data of a run: the steps of a dataset, or of all members of a mixture, whole or some of their episodes.

--dataset demo/pendulum       a member                    buffer    the dataset
--dataset mix.toml            the members of the file     buffer    a `Mixture` with the shares of the file
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from datasets_rl.catalog.mixture_file import Member, read_mixture
from datasets_rl.datasets.open_mixture import mixture
from datasets_rl.disk import expand_home
from datasets_rl.errors import Call, DatasetsRLError, FetchError, InvalidArgumentError, Remedy
from datasets_rl.format.copies import shared_episodes, telling_fingerprints
from datasets_rl.look import StepReader
from datasets_rl.sources import Selection
from datasets_rl.storages.view import View
from datasets_rl.training.fit import check_fit
from datasets_rl.training.statistics import Statistics, mixed_statistics, part_statistics

Episodes = NDArray[np.int64]
_OWN = ("keys", "sampler")
"""Arguments of a mixture that a program chooses for every dataset."""


@dataclass(frozen=True)
class Named:
    """What ``--dataset`` or ``--validation`` names: a dataset, or the file of a mixture."""

    name: str
    members: tuple[Member, ...]
    settings: Mapping[str, Any]
    """The shares of the members, as arguments of `mixture`."""

    @classmethod
    def read(cls, name: str) -> Self:
        """Return what a name names. No dataset is opened.

        Args:
            name: An id, a folder, or the path of a file of a mixture, which ends with ``.toml``.

        Raises:
            InvalidArgumentError: If the file cannot be read, or has what a program cannot train with.
        """
        if not name.endswith(".toml"):
            return cls(name, (Member(name),), {})
        members, settings = read_mixture(expand_home(name))
        problems = [
            f"it sets {key}, and a program reads the fields and draws the steps that its algorithm needs"
            for key in _OWN
            if key in settings
        ]
        if settings.get("missing", "refuse") != "refuse":
            problems.append(
                f"missing is {settings['missing']!r}, and a network has the same inputs for all members, expected 'refuse'"
            )
        problems += [
            f"the member {member.dataset} has transforms, which neither the statistics nor the environment would have: "
            "derive a dataset by a recipe with these steps"
            for member in members
            if member.transforms
        ]
        if problems:
            raise InvalidArgumentError(
                f"the mixture {name} cannot be trained on: {'; '.join(problems)}",
                hint="write a mixture of datasets and weights for training",
            )
        kept = {key: value for key, value in settings.items() if key not in {"batch_size", "missing"}}
        return cls(name, tuple(members), kept)


class TrainingData:
    """The steps that a run trains on, or validates with. `buffer` draws batches.

    Args:
        named: The dataset, or the members of the mixture.
        open_dataset: Returns the dataset of the arguments of a program, with `selection` only the selected episodes.
        args: The arguments of the program.
        episodes: The numbers of the episodes of each member, [*], all by default. The statistics are then those of these
            episodes alone.

    Raises:
        InvalidArgumentError: If the members of a mixture do not fit together. The error names the members and the fields.
        UnknownIdError: If there is no such dataset.
    """

    def __init__(
        self,
        named: Named,
        open_dataset: Callable[..., Any],
        args: argparse.Namespace,
        episodes: Sequence[Episodes] | None = None,
    ) -> None:
        self.named, self._open_dataset, self._args = named, open_dataset, args
        self.name = named.name
        self.names = tuple(member.dataset for member in named.members)
        self.members: tuple[Any, ...] = tuple(self._opened(episodes))
        if len(self.members) > 1 and episodes is None:
            members = [*zip(self.names, self.members, strict=True)]
            check_fit(f"the members of {self.name}", members, conventions=not args.no_conventions)
        self.buffer = self.members[0] if len(self.members) == 1 else self._mixture()
        statistics = [
            member.statistics if episodes is None else part_statistics(_selected_steps(member))
            for member in self.members
        ]
        self.statistics: Statistics = (
            statistics[0] if len(statistics) == 1 else mixed_statistics(statistics, self._mean_shares())
        )
        """The statistics by dotted key. Those of a mixture are weighted by the shares."""

    def _opened(self, episodes: Sequence[Episodes] | None) -> Iterator[Any]:
        for number, dataset in enumerate(self.names):
            own = argparse.Namespace(**{**vars(self._args), "dataset": dataset})
            if len(self.names) > 1:
                own.device = "cpu"  # batches are joined in main memory, and then moved
            chosen = {} if episodes is None else {"selection": Selection(episodes=episodes[number])}
            try:
                yield self._open_dataset(own, **chosen)
            except DatasetsRLError as error:
                if isinstance(error, FetchError):
                    # Only the download takes the options that the remedy names.
                    error.hint = Remedy("with `{}`: {}", Call("download", dataset), error.remedy)
                if len(self.names) > 1:
                    error.notes += (f"{dataset} is member {number} of {self.name}",)
                raise

    def _mixture(self) -> Any:
        # Members that share a seed would draw the same rows, so all members share a generator.
        generator = torch.Generator().manual_seed(self._args.seed)
        return mixture(self.named.members, opened=self.members, generator=generator, **self.named.settings)

    def part(self, episodes: Sequence[Episodes]) -> TrainingData:
        """Return the data of some episodes of each member, given by their numbers."""
        return TrainingData(self.named, self._open_dataset, self._args, episodes)

    @property
    def shares(self) -> list[float]:
        """The share of each member in the first batch, with sum 1."""
        shares: list[float] = [1.0] if len(self.members) == 1 else self.buffer.sampler.shares.tolist()
        return shares

    def _mean_shares(self) -> list[float]:
        """Return the mean of the first and of the final shares: a member that is drawn later counts, too."""
        final = self.buffer.sampler.final_p
        return self.shares if final is None else ((torch.tensor(self.shares) + final) / 2).tolist()

    @property
    def specs(self) -> Any:
        """The spec of a transition, which all members share."""
        return self.members[0].specs

    @property
    def sampler(self) -> Any:
        """The sampler of batches."""
        return self.buffer.sampler

    def batches(self, count: int, batch_size: int) -> Iterator[Any]:
        """Yield batches, [B]."""
        yield from self.buffer.batches(count, batch_size)

    def __len__(self) -> int:
        """Return the number of steps of all members."""
        return sum(map(len, self.members))

    def first_observations(self) -> Tensor:
        """Return the first observations of all episodes of all members, [E, ...]."""
        device = self._args.device if len(self.members) == 1 else "cpu"
        firsts = [torch.from_numpy(member.episodes.starts.copy()).to(device) for member in self.members]
        return torch.cat(
            [member.sample(rows=rows)["observation"] for member, rows in zip(self.members, firsts, strict=True)]
        )

    def single(self, reason: str) -> Any:
        """Return the only dataset.

        Args:
            reason: Why a mixture cannot be used.

        Raises:
            InvalidArgumentError: If the data is a mixture.
        """
        if len(self.members) > 1:
            raise InvalidArgumentError(
                f"{self.name} is a mixture, expected a dataset: {reason}",
                hint="train on one of the members, or offline on the mixture with another program",
            )
        return self.members[0]


def _selected_steps(member: Any) -> StepReader:
    steps = View.of(member.selected_steps())
    return StepReader(member.stored, steps.rows, steps.episodes)


def name_of(dataset: Any) -> str:
    """Return the name of a dataset or of the data of a run, for messages."""
    return dataset.name if isinstance(dataset, TrainingData) else str(dataset.manifest.id)


class SharedPair(NamedTuple):
    """Episodes that two datasets of a run have."""

    names: tuple[str, str]
    shared: int
    """Number of episodes of the second dataset that are in the first dataset, too."""
    episodes: int
    """Number of episodes of the second dataset."""
    validates: bool
    """Whether the second dataset is for validation, and the first for training."""

    def __str__(self) -> str:
        """Return a sentence with the counts."""
        first, second = self.names
        if self.validates:
            return f"{self.shared:,} of {self.episodes:,} validation episodes of {second} are in the training data {first}, too"
        return f"{self.shared:,} of {self.episodes:,} episodes of {second} are in {first}, too: both draw them"


def shared_episodes_of(training: TrainingData, validation: TrainingData | None = None) -> Iterator[SharedPair]:
    """Yield the pairs of datasets that share episodes: two members to train on, or a member and data for validation."""
    every = [training] if validation is None else [training, validation]
    members = [(name, member) for data in every for name, member in zip(data.names, data.members, strict=True)]
    trains = len(training.members)
    for shared in shared_episodes([telling_fingerprints(member.stored) for _, member in members]):
        if shared.first < trains:
            (first, _), (second, other) = members[shared.first], members[shared.second]
            yield SharedPair((first, second), len(shared), len(other.stored.episodes), shared.second >= trains)
