"""A storage, a sampler, a transform, a step and an export format."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace

import torch

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.exporting import ExportFormat
from datasets_rl.preprocessing import DataStep
from datasets_rl.samplers import Sampler
from datasets_rl.storages.base import ReadOnlyStorage
from datasets_rl.storages.dataset import as_rows, wrap_negative_rows
from datasets_rl.transforms import Transform

REWARD = ("next", "reward")


class Backwards(ReadOnlyStorage):
    """The steps of a dataset, the last one first."""

    def __init__(self, steps):
        super().__init__(len(steps))
        self.steps = steps

    def get(self, index):
        rows = wrap_negative_rows(as_rows(index, len(self)), len(self))
        return self.steps.get(len(self) - 1 - rows)

    def column(self, key):
        return self.steps.column(key).flip(0)

    def keys(self):
        return self.steps.keys()


class HalfSampler(Sampler):
    """Draw steps of the first and of the second half of a storage in turns."""

    def __init__(self, generator=None):
        self.generator, self.second = generator, False

    def sample(self, storage, batch_size):
        if not len(storage):
            raise InvalidArgumentError("an empty storage has no steps to sample")
        half = (len(storage) + 1) // 2
        rows = torch.randint(half, (batch_size,), generator=self.generator)
        self.second = not self.second
        return rows if self.second else len(storage) - 1 - rows, {}

    def state_dict(self):
        return {**super().state_dict(), "second": self.second}

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.second = state_dict["second"]


class Doubled(Transform):
    """Double the entries."""

    def transform_value(self, value):
        return value * 2


@dataclass
class SquaredRewards(DataStep):
    """Square the rewards."""

    def __call__(self, batch):
        return replace(batch, steps={**batch.steps, REWARD: batch.steps[REWARD] ** 2})


class Csv(ExportFormat):
    """A folder with a table of the actions and the rewards."""

    name = "csv"
    title = "a folder with a CSV file, which has a row for each step"
    holds_images = False

    def problems(self, content):
        if content.fields and any(field.wide or len(field.shape) > 1 for field in content.fields):
            yield "a CSV file has no images"

    def losses(self, content):
        yield "observations, flags and the metadata of episodes are left out"

    def write(self, content, target, progress):
        with (target / "steps.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            for batch in content.batches():
                for action, reward in zip(batch.steps["action",], batch.steps[REWARD], strict=True):
                    rows.writerow([*(repr(float(value)) for value in action), repr(float(reward[0]))])
                progress(batch.count)


def read_csv(path):
    """Return the actions [N, A] and the rewards [N, 1] of an export."""
    with (path / "steps.csv").open(newline="") as file:
        table = torch.tensor([[float(value) for value in row] for row in csv.reader(file)])
    return {("action",): table[:, :-1].numpy(), REWARD: table[:, -1:].numpy()}
