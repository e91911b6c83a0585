"""The contracts of every sampler and every writer."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest
import torch
from contract_classes import contract_classes

from datasets_rl import samplers, writers
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers import (
    ConsumingSampler,
    EpisodeSampler,
    EpisodeSliceSampler,
    GoalSampler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    WindowSampler,
)
from datasets_rl.testing import SamplerContract, WriterContract, WriterStateContract
from datasets_rl.writers import (
    ImmutableDatasetWriter,
    RoundRobinWriter,
    TensorDictMaxValueWriter,
    TensorDictRoundRobinWriter,
    Writer,
    WriterEnsemble,
)


class TestRandomSampler(SamplerContract):
    def make(self, generator=None):
        return RandomSampler(generator)

    def test_every_step_has_the_same_probability(self, storage):
        """Chi-square with 9 degrees of freedom: above 27.9 once in a thousand runs; this one is seeded."""
        index, _ = self.make(torch.Generator().manual_seed(0)).sample(storage, 100_000)
        counts = torch.bincount(index, minlength=10).double()

        assert float(((counts - 10_000) ** 2 / 10_000).sum()) < 27.9


class TestGoalSampler(SamplerContract):
    def make(self, generator=None):
        return GoalSampler(geometric=0.9, generator=generator)


class TestSamplerWithoutReplacement(SamplerContract):
    def make(self, generator=None):
        return SamplerWithoutReplacement(generator=generator)


class TestConsumingSampler(SamplerContract):
    def make(self, generator=None):
        return ConsumingSampler(1000, generator=generator)


class TestEpisodeSampler(SamplerContract):
    def make(self, generator=None):
        sampler = EpisodeSampler(pool_steps=7)
        sampler.generator = generator
        return sampler


class TestEpisodeSliceSampler(SamplerContract):
    def make(self, generator=None):
        sampler = EpisodeSliceSampler(slice_len=1)
        sampler.generator = generator
        return sampler


class TestPrioritizedSampler(SamplerContract):
    def make(self, generator=None):
        return PrioritizedSampler(10, alpha=0.7, beta=0.5, generator=generator)


class TestPrioritizedSliceSampler(SamplerContract):
    def make(self, generator=None):
        return PrioritizedSliceSampler(10, alpha=0.7, beta=0.5, slice_len=1, generator=generator)


class TestSliceSampler(SamplerContract):
    def make(self, generator=None):
        return SliceSampler(slice_len=1, generator=generator)


class TestSliceSamplerWithoutReplacement(SamplerContract):
    def make(self, generator=None):
        return SliceSamplerWithoutReplacement(slice_len=1, generator=generator)


class TestWindowSampler(SamplerContract):
    def make(self, generator=None):
        return WindowSampler(generator=generator)


class TestRoundRobinWriter(WriterContract):
    def make(self):
        return RoundRobinWriter()


class TestTensorDictRoundRobinWriter(WriterContract):
    def make(self):
        return TensorDictRoundRobinWriter()


class TestTensorDictMaxValueWriter(WriterContract):
    def make(self):
        return TensorDictMaxValueWriter()


class TestWriterEnsemble(WriterStateContract):
    def make(self):
        return WriterEnsemble(RoundRobinWriter(), TensorDictMaxValueWriter())


class TestImmutableDatasetWriter(WriterStateContract):
    def make(self):
        return ImmutableDatasetWriter()

    @pytest.mark.parametrize("verb", ["add", "extend"])
    def test_writes_are_refused_with_a_remedy(self, verb):
        with pytest.raises(InvalidArgumentError, match=f"cannot {verb} dict: a dataset is read-only") as caught:
            getattr(self.make(), verb)({})
        assert "ReplayBuffer" in caught.value.hint

    def test_a_dataset_cannot_be_emptied(self):
        with pytest.raises(InvalidArgumentError, match="emptied"):
            self.make().empty()


BASES = {"Sampler": ("SamplerContract",), "Writer": ("WriterContract", "WriterStateContract")}


@pytest.mark.parametrize(("module", "base"), [(samplers, Sampler), (writers, Writer)], ids=["samplers", "writers"])
def test_every_variant_has_its_contract_tested(module, base):
    tested = contract_classes(*BASES[base.__name__])
    missing = [
        variant.__name__
        for variant in map(vars(module).get, module.__all__)
        if not inspect.isabstract(variant) and not getattr(variant, "needs_several", False)
        if f"Test{variant.__name__}" not in tested
    ]
    folder = module.__name__.rpartition(".")[2]

    assert not missing, (
        f"write the classes {', '.join(f'Test{name}' for name in missing)} in tests/{folder}/, in the module of the variant's "
        f"own tests, each derived from {BASES[base.__name__][0]} of datasets_rl.testing with a method make"
    )


@pytest.mark.parametrize("module", [samplers, writers], ids=["samplers", "writers"])
def test_every_variant_of_the_folder_is_a_public_name(module):
    """Type checkers read the names, so that they cannot be derived when the package is imported."""
    found = {
        value.__name__: value.__module__
        for one in pkgutil.iter_modules(module.__path__)
        for value in vars(importlib.import_module(f"{module.__name__}.{one.name}")).values()
        # The module first: to Python 3.10, list[int] is a class, of which issubclass raises.
        if inspect.isclass(value) and value.__module__ == f"{module.__name__}.{one.name}" and value.__name__[0] != "_"
        if issubclass(value, (Sampler, Writer)) and not inspect.isabstract(value)
    }
    lines = [f"from {place} import {name}" for name, place in found.items() if name not in module.__all__]

    assert not lines, (
        f"add {'; '.join(lines)} to {module.__name__.replace('.', '/')}/__init__.py, and the name to __all__ there"
    )
