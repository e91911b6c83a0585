"""Variants of the package `lights` with a fault each, and the test of the contract that finds the fault.

The tests run this module in a process of its own. A class states the test, and a part of the sentence.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
from lights.components import REWARD, Backwards, Csv, Doubled, HalfSampler, SquaredRewards, read_csv

from datasets_rl import Episode
from datasets_rl.testing import (
    ExportCase,
    ExportContract,
    SamplerContract,
    SourceCase,
    SourceContract,
    SourceFault,
    StepCase,
    StepContract,
    StorageContract,
    TransformCase,
    TransformContract,
    WriterContract,
)
from datasets_rl.writers import RoundRobinWriter


class OnceSampler(HalfSampler):
    has_epochs = True

    def sample(self, storage, batch_size):
        rows, info = super().sample(storage, batch_size)
        self.ran_out = not self.second
        return rows, info


class TestSamplerThatRepeatsARow(SamplerContract):
    found_by, says = "test_the_rows_of_an_epoch_differ", "draw each row once before ran_out is True"

    def make(self, generator=None):
        return OnceSampler(generator)


class FirstHalf(HalfSampler):
    def sample(self, storage, batch_size):
        rows, info = super().sample(storage, batch_size)
        return rows % 5, info


class TestSamplerThatLeavesRowsOut(SamplerContract):
    found_by, says = "test_batches_are_rows_of_the_storage_and_cover_it", "draw each step of the storage"

    def make(self, generator=None):
        return FirstHalf(generator)


class Int32Sampler(HalfSampler):
    def sample(self, storage, batch_size):
        rows, info = super().sample(storage, batch_size)
        return rows.int(), info


class TestSamplerOfOtherIntegers(SamplerContract):
    found_by, says = "test_batches_are_rows_of_the_storage_and_cover_it", "return torch.int64"

    def make(self, generator=None):
        return Int32Sampler(generator)


class TestSamplerThatIgnoresItsGenerator(SamplerContract):
    found_by = "test_a_separate_generator_does_not_advance_the_global_one"
    says = "pass the generator to each random function"

    def make(self, generator=None):
        del generator
        return HalfSampler()


class Forgetful(HalfSampler):
    def state_dict(self):
        return {**super().state_dict(), "second": False}


class TestSamplerThatSavesHalfItsState(SamplerContract):
    found_by, says = "test_a_loaded_state_gives_the_next_batches", "restore this state in load_state_dict"

    def make(self, generator=None):
        return Forgetful(generator)


class TestSamplerWithoutMake(SamplerContract):
    found_by, says = "test_an_empty_storage_cannot_be_sampled", "TestSamplerWithoutMake lacks the method make"


class LosesOne(Backwards):
    def __init__(self, steps):
        super().__init__(steps)
        self.max_size = len(steps) - 1

    @property
    def filled_count(self):
        return self.max_size


class OfBackwards(StorageContract):
    def make(self, steps):
        return self.storage_class(steps)

    def elements(self):
        return super().elements()[::-1]


class TestStorageThatLosesAnElement(OfBackwards):
    found_by, says = "test_its_length_is_its_number_of_elements", "expected 9, the number of elements"
    storage_class = LosesOne


class Wraps(Backwards):
    def get(self, index):
        try:
            return super().get(index)
        except IndexError:
            return super().get(0)


class TestStorageThatHidesAWrongIndex(OfBackwards):
    found_by, says = "test_an_invalid_or_out_of_range_index_is_an_index_error", "must raise an IndexError"
    storage_class = Wraps


class Forwards(Backwards):
    def column(self, key):
        return self.steps.column(key)


class TestStorageWhoseColumnsHaveAnotherOrder(OfBackwards):
    found_by, says = "test_a_column_is_that_key_of_all_elements", "differs from the values of get(slice(None))"
    storage_class = Forwards


class Caching(Backwards):
    def __init__(self, steps):
        super().__init__(steps)
        self.data = steps.get(slice(None)).clone()


class TestStorageThatPicklesItsData(OfBackwards):
    found_by, says = "test_a_pickle_has_the_paths_and_not_the_data", "leave caches out of __getstate__"
    storage_class = Caching


class Shared(Backwards):
    def __init__(self, steps):
        super().__init__(steps)
        self.cached = None

    def get(self, index):
        if isinstance(index, list) and index == [*range(len(self))]:
            self.cached = super().get(index) if self.cached is None else self.cached
            return self.cached
        return super().get(index)


class TestStorageThatSharesItsMemory(OfBackwards):
    found_by, says = "test_writing_to_a_batch_does_not_change_the_storage", "return copies of what the storage keeps"
    storage_class = Shared


class InPlace(Doubled):
    def transform_value(self, value):
        return value.mul_(2)


class TestTransformThatChangesItsInput(TransformContract):
    found_by, says = "test_the_input_does_not_change", "never modify a tensor in place"
    cases = {"in place": TransformCase(lambda: InPlace(["observation"]))}


class TestTransformWhoseSumsOverflow(TransformContract):
    found_by, says = "test_rewards_of_every_dtype_give_the_results_of_float64", "convert rewards by float_rewards"
    cases = {"rewards": TransformCase(lambda: Doubled([REWARD]))}


class Centered(Doubled):
    def transform_value(self, value):
        return value - value.mean()


class TestTransformThatMixesTrajectories(TransformContract):
    found_by, says = (
        "test_part_of_a_batch_is_transformed_as_in_the_whole",
        "depends on the other trajectories of the batch",
    )
    cases = {"centered": TransformCase(lambda: Centered(["observation"]))}


class WrongSpec(Doubled):
    def transformed_spec(self, spec):
        return spec


class TestTransformOutsideOfItsSpec(TransformContract):
    found_by, says = "test_the_output_is_in_the_transformed_spec", "the output is not in the spec of transform_spec"
    cases = {"spec": TransformCase(lambda: WrongSpec(["observation", "action", "free"]))}


class Tripled(Doubled):
    def invert_value(self, value):
        return value / 3


class TestTransformWithAWrongInverse(TransformContract):
    found_by, says = "test_its_inverse_undoes_it", "inv does not restore action"
    cases = {"tripled": TransformCase(lambda: Tripled(["action"], in_keys_inv=["action"]), inverts=("action",))}


@dataclass
class ShiftedActions(SquaredRewards):
    def __call__(self, batch):
        return replace(batch, steps={**batch.steps, ("action",): batch.steps["action",] + 1})


class TestStepThatChangesActionsItMustNot(StepContract):
    found_by = "test_observations_and_actions_stay_if_an_environment_needs_no_change"
    says = "the step changes action, and for_environment returns None"
    cases = {"shifted": StepCase(ShiftedActions)}


@dataclass
class NormalizedRewards(SquaredRewards):
    def __call__(self, batch):
        rewards = batch.steps[REWARD]
        return replace(batch, steps={**batch.steps, REWARD: rewards - rewards.mean()})


class TestStepThatDependsOnTheBatch(StepContract):
    found_by = "test_the_output_does_not_depend_on_the_division_into_batches"
    says = "compute each episode from the episode alone"
    cases = {"normalized": StepCase(NormalizedRewards)}


@dataclass
class NoEnds(SquaredRewards):
    def __call__(self, batch):
        flags = {("next", name): np.zeros((batch.count, 1), bool) for name in ("terminated", "truncated")}
        return replace(batch, steps={**batch.steps, **flags})


class TestStepThatLosesTheEnds(StepContract):
    found_by = "test_the_output_is_strict_ted_and_the_input_does_not_change"
    says = "terminated or truncated is not True in the last step of each episode"
    cases = {"no ends": StepCase(NoEnds)}


@dataclass
class InPlaceRewards(SquaredRewards):
    def __call__(self, batch):
        batch.steps[REWARD][:] **= 2
        return replace(batch)


class TestStepThatChangesItsInput(StepContract):
    found_by = "test_the_output_is_strict_ted_and_the_input_does_not_change"
    says = "return new arrays in a new batch"
    cases = {"in place": StepCase(InPlaceRewards)}


class TestStepWithoutCases(StepContract):
    found_by, says = "", "TestStepWithoutCases tests nothing, because the class has no cases. Set `cases ="


class FirstBatchOnly(Csv):
    def write(self, content, target, progress):
        for batch in content.batches():
            rows = np.concatenate([batch.steps["action",], batch.steps[REWARD]], 1)
            np.savetxt(target / "steps.csv", rows, delimiter=",", fmt="%.9g")
            progress(batch.count)


class TestExportThatKeepsTheLastBatch(ExportContract):
    found_by, says = "test_the_division_into_batches_does_not_matter", "continue each batch where the last batch ended"
    cases = {"csv": ExportCase(FirstBatchOnly, read_csv)}


class Reordered(Csv):
    def write(self, content, target, progress):
        super().write(content, target, progress)
        path = target / "steps.csv"
        path.write_text("".join(sorted(path.read_text().splitlines(keepends=True))))


class TestExportInAnotherOrder(ExportContract):
    found_by, says = "test_the_values_are_read_back", "write the steps in the order of the dataset"
    cases = {"csv": ExportCase(Reordered, read_csv)}


class TestExportThatClaimsImages(ExportContract):
    found_by, says = "test_images_are_held_as_the_class_states", "yield a problem for images that cannot be written"
    cases = {"csv": ExportCase(type("Claims", (Csv,), {"holds_images": True}), read_csv)}


class Silent(Csv):
    def write(self, content, target, progress):
        super().write(content, target, lambda _: None)


class TestExportWithoutProgress(ExportContract):
    found_by = "test_a_dataset_is_written_completely_or_refused_with_all_reasons"
    says = "call progress(steps) after each batch"
    cases = {"csv": ExportCase(Silent, read_csv)}


def write_days(folder, *, shift=0):
    """Write a day of a room; return an episode whose rewards are `shift` steps later."""
    (folder / "room").mkdir(parents=True)
    episodes = []
    for day, steps in enumerate((4, 3)):
        lamps = np.arange(2 * steps + 2, dtype="f4").reshape(-1, 2)
        switches, comfort = np.ones((steps, 1), "f4"), np.arange(steps, dtype="f4")
        np.savez(folder / f"room/day-{day}.npz", lamps=lamps, switches=switches, comfort=comfort)
        last = np.arange(steps)[:, None] == steps - 1
        flags = {("next", "terminated"): np.zeros_like(last), ("next", "truncated"): last}
        rewards = {("action",): switches, REWARD: np.roll(comfort, shift)[:, None]}
        episodes.append(Episode(rewards | flags, {("observation",): lamps}))
    return episodes


class TestSourceWithShiftedRewards(SourceContract):
    found_by, says = "test_it_is_strict_ted_and_has_the_generated_values", "next.reward of step 0 is"
    cases = {"room": SourceCase("lights/room", lambda folder: write_days(folder, shift=1))}


def shorten(folder):
    """Leave out the last reward of a day, whose reader does not notice."""
    path = folder / "room/day-1.npz"
    with np.load(path) as day:
        arrays = dict(day)
    np.savez(path, **{**arrays, "unused": np.zeros(1)})


class TestSourceThatAcceptsDamage(SourceContract):
    found_by = "test_corrupted_files_are_refused_and_nothing_is_stored"
    says = "the corrupted files must raise a ConversionError"
    cases = {"room": SourceCase("lights/room", write_days, faults={"another array": SourceFault(shorten, "unused")})}


class TestSourceWhoseCaseYieldsNoVariables(SourceContract):
    found_by, says = "test_it_is_strict_ted_and_has_the_generated_values", "yield the environment variables"
    cases = {"room": SourceCase("lights/room", write_days, nullcontext)}


class Backspacing(RoundRobinWriter):
    def extend(self, data):
        return super().extend(data).flip(0)


class TestWriterThatReturnsOtherRows(WriterContract):
    found_by, says = "test_the_returned_rows_have_the_data", "return the rows in the order of the steps"

    def make(self):
        return Backspacing()
