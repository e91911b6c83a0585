"""Every batch of several buffers has the same keys, whichever steps are drawn."""

from __future__ import annotations

import re

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from datasets_rl import (
    LazyTensorStorage,
    Mixture,
    PrioritizedSampler,
    RandomSampler,
    ReplayBufferEnsemble,
    Sampler,
    SliceSampler,
    TensorDictReplayBuffer,
)
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.transforms import VecNorm

SEEDS = range(40)


def buffer(count=20, *, steps=20, sampler=None, transform=None, **fields):
    """Return a buffer with episodes of 10 steps."""
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(count), sampler=sampler, transform=transform)
    if steps:
        rb.extend(data(steps, **fields))
    return rb


def data(steps=20, **fields):
    done = torch.arange(steps)[:, None] % 10 == 9
    return TensorDict({"observation": torch.randn(steps, 3), "next": {"done": done}, **fields}, [steps])


def action(count=20):
    return {"action": torch.randn(count, 2)}


def keys_over_seeds(rb, size=4):
    """Return the different sets of keys that batches have, over one batch per seed."""
    found = set()
    for seed in SEEDS:
        torch.manual_seed(seed)
        found.add(frozenset(rb.sample(size).keys(include_nested=True)))
    return found


KINDS = {
    "ensemble": lambda *members, **options: ReplayBufferEnsemble(*members, p=[0.5, 0.5], **options),
    "one buffer a batch": lambda *members, **options: ReplayBufferEnsemble(*members, num_buffer_sampled=1, **options),
    "shares by chance": lambda *members, **options: Mixture(*members, exact=False, **options),
    "a share of 0": lambda *members, **options: Mixture(*members, p=[1, 0], **options),
    "the other share of 0": lambda *members, **options: Mixture(*members, p=[0, 1], **options),
}


@pytest.mark.parametrize("kind", KINDS)
class TestOneSetOfKeys:
    @pytest.mark.first(3)
    @pytest.mark.parametrize("order", [1, -1])
    def test_drop_leaves_the_key_out_of_every_batch(self, kind, order):
        rb = KINDS[kind](*[buffer(**action()), buffer()][::order], missing="drop")

        assert keys_over_seeds(rb) == keys_over_seeds(rb, 8)
        assert len(keys_over_seeds(rb)) == 1
        assert "action" not in rb.sample(4)

    @pytest.mark.first(3)
    @pytest.mark.parametrize("order", [1, -1])
    def test_zero_has_the_key_in_every_batch_with_zeros_for_the_others(self, kind, order):
        rb = KINDS[kind](*[buffer(**action()), buffer()][::order], missing="zero")

        assert len(keys_over_seeds(rb)) == 1
        for seed in SEEDS:
            torch.manual_seed(seed)
            batch = rb.sample(4)
            owner = 0 if order == 1 else 1
            zeros = (batch["action"] == 0).all(-1)
            assert torch.equal(zeros, batch["index", "buffer_ids"] != owner)

    def test_refuse_raises_before_the_first_batch(self, kind):
        with pytest.raises(InvalidArgumentError, match=re.escape("action  float32 [2]  -")):
            KINDS[kind](buffer(**action()), buffer())

    def test_the_first_line_of_the_message_names_the_keys(self, kind):
        many = {f"k{number}": torch.zeros(20) for number in range(9)}
        with pytest.raises(InvalidArgumentError) as refused:
            KINDS[kind](buffer(**action(), **many), buffer())
        assert refused.value.message.splitlines()[0] == (
            "the members do not fit together: only some have action, k0, k1, k2, k3, k4 and 4 more"
        )
        with pytest.raises(InvalidArgumentError) as refused:
            KINDS[kind](buffer(**action(), k0=torch.zeros(20)), buffer(k0=torch.zeros(20, 1)))
        assert refused.value.message.splitlines()[0] == (
            "the members do not fit together: only some have action; the dtype or the shape differs in k0"
        )

    def test_entries_of_the_samplers_are_in_every_batch(self, kind):
        sampled = buffer(sampler=PrioritizedSampler(20, 1.0, 1.0))

        found = keys_over_seeds(KINDS[kind](sampled, buffer()))

        assert len(found) == 1
        assert "priority_weight" in next(iter(found))

    def test_marks_of_slices_are_in_every_batch(self, kind):
        slices = SliceSampler(slice_len=1, strict_length=False, pad_output=True)
        found = keys_over_seeds(KINDS[kind](buffer(sampler=slices), buffer(), missing="zero"))

        assert len(found) == 1
        assert {"slice_id", ("collector", "mask"), ("next", "truncated")} <= next(iter(found))

    def test_text_is_filled_with_empty_text(self, kind):
        text = {"task": NonTensorStack(*["lift"] * 20)}
        rb = KINDS[kind](buffer(**text), buffer(), missing="zero")

        assert len(keys_over_seeds(rb)) == 1
        batch = rb.sample(4)
        batch = batch[0] if batch.ndim > 1 else batch
        expected = ["lift" if int(one) == 0 else "" for one in batch["index", "buffer_ids"]]
        assert [step["task"] for step in batch] == expected


class TestGrowingBuffers:
    def test_the_keys_of_an_empty_buffer_are_compared_once_it_has_steps(self):
        online = buffer(steps=0)
        rb = Mixture(buffer(**action()), online, p=[1, 0], final_p=[0.5, 0.5], anneal=4, batch_size=4)
        assert "action" in rb.sample()

        online.extend(data())
        with pytest.raises(InvalidArgumentError, match="action"):
            rb.sample()

    @pytest.mark.parametrize("prefetch", [None, 2])
    def test_online_steps_join_with_the_same_keys(self, prefetch):
        online = buffer(steps=0)
        rb = Mixture(buffer(**action()), online, p=[1, 0], batch_size=4, prefetch=prefetch)
        keys = frozenset(rb.sample().keys(include_nested=True))
        online.extend(data(**action()))
        rb.sampler.p = [0.5, 0.5]

        batches = [rb.sample() for _ in range(8)]
        assert {frozenset(batch.keys(include_nested=True)) for batch in batches} == {keys}
        assert (batches[-1]["index", "buffer_ids"] == 1).any()

    def test_a_transform_that_is_appended_later_is_applied(self):
        first, second = buffer(), buffer()
        rb = ReplayBufferEnsemble(first, second, missing="drop")
        first.append_transform(lambda batch: batch.set("more", batch["observation"]))
        assert not any("more" in keys for keys in keys_over_seeds(rb))

        second.append_transform(lambda batch: batch.set("more", batch["observation"]))
        assert all("more" in keys for keys in keys_over_seeds(rb))


class TestComparingKeysHasNoSideEffects:
    def test_transforms_do_not_fit_to_the_compared_batch(self):
        norm = VecNorm(in_keys=["observation"])
        ReplayBufferEnsemble(buffer(transform=norm), buffer(), batch_size=8)

        assert norm.state_dict() == VecNorm(in_keys=["observation"]).state_dict()

    def test_the_global_generator_does_not_advance(self):
        noise = [lambda batch: batch.set("noise", torch.rand(batch.shape))]
        torch.manual_seed(3)
        before = torch.get_rng_state()
        ReplayBufferEnsemble(buffer(transform=noise), buffer(transform=noise), batch_size=8)
        members = [buffer(), buffer()]
        state = torch.get_rng_state()
        Mixture(*members, batch_size=8)

        assert torch.equal(torch.get_rng_state(), state)
        assert not torch.equal(before, state)  # the buffers drew their data from the global generator

    def test_a_sampler_does_not_advance(self):
        sampler = SliceSampler(slice_len=5)
        rb = buffer(sampler=sampler)
        ReplayBufferEnsemble(rb, buffer(), batch_size=20, missing="zero")

        assert rb.sample(10)["slice_id"].unique().tolist() == [0, 1]


class UnannouncedEntry(RandomSampler):
    """A sampler that returns an entry without announcing it."""

    def sample(self, storage, batch_size):
        rows, _ = super().sample(storage, batch_size)
        return rows, {"luck": torch.ones(batch_size)}


def test_unannounced_entries_of_a_sampler_are_in_no_batch():
    found = keys_over_seeds(Mixture(buffer(sampler=UnannouncedEntry()), buffer(), exact=False))

    assert len(found) == 1
    assert "luck" not in next(iter(found))


def test_a_collate_function_receives_the_unchanged_parts_of_the_buffers():
    sampled = buffer(sampler=PrioritizedSampler(20, 1.0, 1.0), **action())
    rb = ReplayBufferEnsemble(sampled, buffer(), sample_from_all=True, collate_fn=list, batch_size=8)

    first, second = rb.sample()
    assert {"action", "priority_weight"} <= set(first.keys())
    assert "action" not in second


def test_objects_that_are_neither_tensors_nor_text_cannot_be_filled():
    things = {"thing": NonTensorStack(*[frozenset((1,))] * 20)}

    with pytest.raises(InvalidArgumentError, match="missing='zero' cannot fill thing"):
        Mixture(buffer(**things), buffer(), missing="zero")
    assert "thing" not in Mixture(buffer(**things), buffer(), missing="drop", batch_size=4).sample()


def test_a_transform_whose_keys_change_is_named():
    def inconstant(batch):
        return batch.exclude("action") if inconstant.calls else batch

    inconstant.calls = 0
    rb = Mixture(buffer(**action(), transform=inconstant), buffer(), missing="zero", batch_size=4)
    assert "action" in rb.sample()
    inconstant.calls = 1
    assert "action" in rb.sample()  # filled, as in the other members


@pytest.mark.parametrize("several", [ReplayBufferEnsemble, Mixture])
def test_the_table_for_notebooks_counts_steps_and_not_buffers(several):
    html = several(buffer(30), buffer(40, steps=7))._repr_html_()

    assert "27 of 70" in html


def test_every_sampler_announces_exactly_the_entries_that_it_returns(tmp_path):
    del tmp_path
    samplers: list[Sampler] = [
        RandomSampler(),
        PrioritizedSampler(20, 1.0, 1.0),
        SliceSampler(slice_len=5),
        SliceSampler(num_slices=2, strict_length=False, pad_output=True),  # the last episode has 2 steps
        SliceSampler(slice_len=5, truncated_key=None),
    ]
    for sampler in samplers:
        rb = buffer(steps=12, sampler=sampler, is_init=torch.zeros(12, 1, dtype=torch.bool))
        announced = sampler.info_of(rb.storage, torch.arange(10))
        _, reported = sampler.sample(rb.storage, 10)

        assert announced.keys() == reported.keys()
        assert {key: (one.dtype, one.shape) for key, one in announced.items()} == {
            key: (one.dtype, one.shape) for key, one in reported.items()
        }
