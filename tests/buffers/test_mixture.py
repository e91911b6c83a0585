"""Mixed buffers: flat batches with the number of each step's buffer; keys are compared before the first batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from stored_data import trajectory, write_dataset
from tensordict import TensorDict

from datasets_rl import (
    DatasetStorage,
    LazyTensorStorage,
    Mixture,
    PrioritizedSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)
from datasets_rl.errors import InvalidArgumentError

GOLDEN = Path(__file__).parents[1] / "golden" / "goals_and_rewards.json"


def member(number, count=40, *, transform=None, sampler=None, **further):
    """Return a buffer whose values are 1,000 times the number of the buffer plus the row."""
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(count), transform=transform, sampler=sampler)
    value = number * 1000 + torch.arange(count)
    done = torch.arange(count)[:, None] % 10 == 9
    rb.extend(TensorDict({"value": value, "next": {"done": done}, **further}, [count]))
    return rb


def test_each_member_has_its_transform_and_the_mixture_has_one_for_all():
    def tripled(batch):
        return batch.set("value", batch["value"] * 3)

    def seen(batch):
        return batch.set("from", batch["index", "buffer_ids"])

    batch = Mixture(member(0, transform=tripled), member(1), batch_size=8, transform=seen).sample()
    scale = torch.where(batch["from"] == 0, 3, 1)

    assert torch.equal(batch["value"], (batch["from"] * 1000 + batch["index", "index"]) * scale)


def test_equal_shares_alternate_as_in_rlpd():
    """RLPD's `combine`: the offline batch in rows 0, 2, 4 and the online batch in rows 1, 3, 5."""
    golden = json.loads(GOLDEN.read_text())["rlpd_combine"]
    both = TensorDict({"a": torch.tensor(golden["a"]), "b": {"c": torch.tensor(golden["b"]["c"])}}, [6])
    buffers = [
        TensorDictReplayBuffer(storage=LazyTensorStorage(3), sampler=SamplerWithoutReplacement(shuffle=False))
        for _ in "ab"
    ]
    for number, buffer in enumerate(buffers):
        buffer.extend(both[number::2])
    batch, info = Mixture(*buffers, interleave=True, batch_size=6).sample(return_info=True)

    assert batch["a"].tolist() == golden["a"]
    assert batch["b", "c"].tolist() == golden["b"]["c"]
    assert batch["index", "buffer_ids"].tolist() == info["index"]["buffer_ids"].tolist() == [0, 1] * 3
    assert batch["index", "index"].tolist() == info["index"]["index"].tolist() == [0, 0, 1, 1, 2, 2]


def test_other_shares_are_evenly_spread_and_slices_stay_whole():
    rb = Mixture(member(0), member(1), p=[3, 1], interleave=True, batch_size=8)
    assert rb.sample()["index", "buffer_ids"].tolist() == [0, 0, 1, 0, 0, 0, 1, 0]

    slices = [member(number, sampler=SliceSampler(slice_len=4)) for number in range(2)]
    batch = Mixture(*slices, unit=4, interleave=True, batch_size=16).sample()
    assert batch["index", "buffer_ids"].reshape(4, 4).tolist() == [[0] * 4, [1] * 4] * 2
    assert (batch["value"].reshape(4, 4).diff(dim=1) == 1).all()
    assert torch.equal(batch["value"], batch["index", "buffer_ids"] * 1000 + batch["index", "index"])


def test_priorities_of_an_interleaved_batch_reach_their_buffers():
    buffers = [member(number, sampler=PrioritizedSampler(40, 1.0, 1.0)) for number in range(2)]
    rb = Mixture(*buffers, interleave=True, batch_size=8)
    batch = rb.sample()
    rb.update_priority(batch["index"], batch["value"].float() + 1)

    for row, value in zip(batch["index", "index"].tolist(), batch["value"].tolist(), strict=True):
        assert buffers[value // 1000].sampler.priorities[row] == pytest.approx(value + 1, rel=1e-4)


def test_interleaving_and_a_collate_function_exclude_each_other():
    with pytest.raises(InvalidArgumentError, match="mutually exclusive"):
        Mixture(member(0), member(1), interleave=True, collate_fn=torch.cat)


def test_a_ring_beside_a_stored_dataset_grows_and_the_dataset_does_not_change(tmp_path):
    offline = DatasetStorage(write_dataset(tmp_path, [trajectory(6), trajectory(4)]))
    before = offline[:].clone()
    online = TensorDictReplayBuffer(storage=LazyTensorStorage(8))
    rb = Mixture(TensorDictReplayBuffer(storage=offline), online, interleave=True, missing="drop", batch_size=8)
    step = before[:1].exclude("episode").apply(torch.zeros_like)
    for count in range(1, 12):
        online.extend(step.clone().set("observation", torch.full((1, 3), float(-count))))
        batch = rb.sample()
        assert batch["index", "buffer_ids"].tolist() == [0, 1] * 4
        assert (batch["observation"][::2] > 0).all()
        newest = batch["observation"][1::2]
        assert ((-count <= newest) & (newest <= -max(count - 7, 1))).all()

    assert len(online) == 8
    assert (offline[:] == before).all()


def test_each_key_that_differs_is_named_before_the_first_batch():
    odd = member(1, more=torch.zeros(40), image=torch.zeros(40, 3, 8, 8, dtype=torch.uint8))
    plain = member(0, image=torch.zeros(40, 3, 4, 4))

    with pytest.raises(InvalidArgumentError) as raised:
        Mixture(plain, odd, names=["medium", "expert"])

    lines = [line.split() for line in raised.value.message.splitlines()[1:]]
    assert lines == [
        ["key", "medium", "expert"],
        ["image", "float32", "[3,", "4,", "4]", "uint8", "[3,", "8,", "8]"],
        ["more", "-", "float32", "[]"],
    ]
    assert "missing='drop'" in raised.value.hint


def test_shapes_that_differ_are_refused_for_every_treatment_of_missing_keys():
    with pytest.raises(InvalidArgumentError, match=r"extra +float32 \[2\] +float32 \[3\]"):
        Mixture(member(0, extra=torch.zeros(40, 2)), member(1, extra=torch.zeros(40, 3)), missing="drop")


def test_slices_of_members_follow_one_another():
    rb = Mixture(*(member(n, sampler=SliceSampler(slice_len=5)) for n in range(2)), p=[3, 1], unit=5, batch_size=20)
    batch = rb.sample()

    assert batch["index", "buffer_ids"].tolist() == [0] * 15 + [1] * 5
    assert (batch["value"].reshape(4, 5).diff(dim=1) == 1).all()
    assert batch["slice_id"].reshape(4, 5).unique(dim=1).shape == (4, 1)
    assert batch["next", "truncated"][4::5].all()


def test_a_member_with_priorities_gives_weights_and_accepts_priorities():
    sampler = PrioritizedSampler(max_capacity=40, alpha=1.0, beta=1.0)
    rb = Mixture(member(0), member(1, sampler=sampler), batch_size=10)
    batch = rb.sample()
    assert (batch["priority_weight"][:5] == 1).all()
    batch["td_error"] = torch.where(batch["index", "index"] == batch["index", "index"][-1], 1e6, 1e-6)
    rb.update_tensordict_priority(batch)

    hot = batch["index", "index"][-1]
    assert (rb.sample()["index", "index"][5:] == hot).double().mean() > 0.5


def test_prefetched_batches_are_the_same_as_without_prefetching():
    def drawn(prefetch):
        torch.manual_seed(5)
        rb = Mixture(member(0), member(1), p=[0.7, 0.3], batch_size=9, prefetch=prefetch)
        return [rb.sample()["value"].tolist() for _ in range(6)]

    assert drawn(None) == drawn(2)


@pytest.mark.parametrize("prefetch", [None, 2])
def test_a_loaded_mixture_gives_the_next_batches_of_the_original(tmp_path, prefetch):
    def made():
        generator = torch.Generator().manual_seed(1)
        return Mixture(
            member(0),
            member(1),
            p=[0.7, 0.3],
            final_p=[0.1, 0.9],
            anneal=9,
            batch_size=7,
            prefetch=prefetch,
            generator=generator,
        )

    first, second = made(), made()
    for _ in range(4):
        first.sample()
    first.dumps(tmp_path / "state")
    second.loads(tmp_path / "state")

    for _ in range(8):
        assert torch.equal(first.sample()["value"], second.sample()["value"])


def test_members_are_indexed_by_number_and_have_names():
    rb = Mixture(member(0), member(1), names=["a", "b"], p=[3, 1], batch_size=4)

    assert rb.names == ("a", "b")
    assert rb[1][3]["value"] == 1003
    assert (rb[1:].sample(4)["value"] >= 1000).all()


def test_with_a_loader_batches_keep_their_shares():
    rb = Mixture(member(0), member(1), p=[3, 1], batch_size=8)
    batches = iter(rb)

    assert [torch.bincount(next(batches)["index", "buffer_ids"]).tolist() for _ in range(3)] == [[6, 2]] * 3
