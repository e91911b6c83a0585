"""A buffer of several buffers: each part of a batch is from one buffer, and parts that differ raise an error."""

from __future__ import annotations

import threading

import pytest
import torch
from tensordict import TensorDict

from datasets_rl import (
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    RoundRobinWriter,
    SamplerEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    StorageEnsemble,
    TensorDictReplayBuffer,
    WriterEnsemble,
)
from datasets_rl.errors import InvalidArgumentError


def member(number, count=20, *, transform=None, sampler=None, slots=None, **further):
    """Return a buffer whose values are 10,000 times the number of the buffer plus the row."""
    storage = LazyMemmapStorage(slots or count)
    rb = TensorDictReplayBuffer(storage=storage, transform=transform, sampler=sampler)
    rb.extend(TensorDict({"value": number * 10_000 + torch.arange(count), **further}, [count]))
    return rb


@pytest.fixture
def rb():
    return ReplayBufferEnsemble(member(0), member(1), p=[0.5, 0.5])


def test_every_step_has_the_number_of_its_buffer(rb):
    for _ in range(5):
        batch = rb.sample(10)

        assert batch.batch_size == (2, 5)
        source, row = batch["index", "buffer_ids"], batch["index", "index"]
        assert torch.equal(batch["value"], source * 10_000 + row)
        assert (source == source[:, :1]).all()


@pytest.mark.first(1)
@pytest.mark.parametrize(("p", "shares"), [([3, 1], [0.75, 0.25]), (None, [0.5, 0.5]), ([0, 1], [0, 1])])
def test_buffers_are_drawn_with_their_probabilities(p, shares):
    torch.manual_seed(0)
    rb = ReplayBufferEnsemble(member(0), member(1), p=p)
    source = torch.cat([rb.sample(4)["index", "buffer_ids"][:, 0] for _ in range(1000)])

    assert (source == 1).double().mean() == pytest.approx(shares[1], abs=0.03)


def test_each_member_has_its_transform_and_the_ensemble_has_one_for_all():
    """TorchRL's example of two datasets with different keys and sizes, with functions as transforms."""

    def shrunk(data):
        return data.set("pixels", torch.nn.functional.interpolate(data["pixels"].float(), 8))

    rb = ReplayBufferEnsemble(
        member(
            0,
            pixels=torch.zeros(20, 3, 24, 24),
            some=torch.ones(20),
            transform=[shrunk, lambda data: data.rename_key_("some", "renamed")],
        ),
        member(
            1,
            pixels=torch.zeros(20, 3, 16, 16),
            another=torch.ones(20),
            transform=[shrunk, lambda data: data.rename_key_("another", "renamed")],
        ),
        p=[0.5, 0.5],
        transform=lambda data: data.set("twice", data["renamed"] * 2),
    )
    batch = rb.sample(10)

    assert batch["pixels"].shape == (2, 5, 3, 8, 8)
    assert (batch["twice"] == 2).all()


def test_buffers_are_indexed_and_written_by_number(rb):
    assert rb[0][3]["value"] == 3
    assert rb[1, 3]["value"] == 10_003
    assert rb[:, 3]["value"].tolist() == [3, 10_003]
    assert rb[-1] is rb[1]
    rb[1].extend(TensorDict({"value": torch.tensor([-7])}, [1]))
    rb[0, 5] = TensorDict({"value": torch.tensor(-5)})
    assert rb[1, 0]["value"] == -7
    assert rb[0, 5]["value"] == -5


def test_a_slice_of_the_buffers_is_an_ensemble_with_their_probabilities():
    rb = ReplayBufferEnsemble(*map(member, range(3)), p=[0, 1, 3])
    some = rb[1:]

    assert isinstance(some, ReplayBufferEnsemble)
    assert some.sampler.p.tolist() == [0.25, 0.75]
    assert set((some.sample(8)["value"] // 10_000).flatten().tolist()) <= {1, 2}
    assert [int(one["value"]) for one in (rb[torch.tensor([2, 0])][0, 0], rb[[2, 0]][1, 0])] == [20_000, 0]


@pytest.mark.parametrize("verb", ["add", "extend"])
def test_writing_to_all_at_once_is_refused(rb, verb):
    with pytest.raises(InvalidArgumentError, match="ambiguous") as caught:
        getattr(rb, verb)(TensorDict({"value": torch.ones(2)}, [2]))
    assert "rb[i]" in caught.value.hint


def test_it_can_be_built_from_components():
    storages = [LazyTensorStorage(5) for _ in range(2)]
    rb = ReplayBufferEnsemble(
        storages=StorageEnsemble(*storages, transforms=[lambda data: data + 100, None]),
        samplers=SamplerEnsemble(RandomSampler(), RandomSampler(), sample_from_all=True),
        writers=WriterEnsemble(RoundRobinWriter(), RoundRobinWriter()),
        batch_size=4,
    )
    rb[0].extend(torch.zeros(5))
    rb[1].extend(torch.ones(5))

    assert rb.sample().tolist() == [[100, 100], [1, 1]]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"missing": "maybe"}, "missing is 'maybe'"),
        ({"p": [1, 2, 3]}, "p has shape"),
        ({"p": [1, 2], "sample_from_all": True}, "mutually exclusive"),
        ({"writers": WriterEnsemble()}, "mutually exclusive"),
    ],
    ids=["missing", "p", "all", "parts"],
)
def test_contradictory_arguments_are_refused(options, problem):
    with pytest.raises(InvalidArgumentError, match=problem):
        ReplayBufferEnsemble(member(0), member(1), **options)
    with pytest.raises(InvalidArgumentError, match="needs buffers"):
        ReplayBufferEnsemble(storages=StorageEnsemble(LazyTensorStorage(3)))


def test_slices_stay_marked_in_a_batch_with_single_steps():
    """Without the marks, the first step of a slice would be taken for the successor of the previous slice."""
    flags = {"done": torch.zeros(20, 1, dtype=torch.bool), "truncated": torch.zeros(20, 1, dtype=torch.bool)}
    slices = member(0, sampler=SliceSampler(slice_len=2, end_key=("next", "done")), next=TensorDict(flags, [20]))
    steps = member(1, next=TensorDict(flags, [20]))
    rb = ReplayBufferEnsemble(slices, steps, sample_from_all=True, missing="drop")

    batch, info = rb.sample(8, return_info=True)
    assert batch["next", "truncated"][..., 0].tolist() == [[False, True, False, True], [False] * 4]
    assert info["next", "truncated"][1] is None
    assert info["slice_id"].tolist() == [[0, 0, 2, 2], [-1] * 4]


def test_priorities_go_to_the_samplers_of_their_buffers():
    rb = ReplayBufferEnsemble(
        *(member(number, sampler=PrioritizedSampler(20, 1.0, 1.0, eps=0.0)) for number in range(2)),
        sample_from_all=True,
    )
    for number in range(2):
        rb[number].update_priority(torch.arange(20), 0.0)
        rb[number].update_priority(torch.tensor([4]), 1.0)
    batch = rb.sample(4)
    assert batch["value"].tolist() == [[4, 4], [10_004, 10_004]]
    assert batch["priority_weight"].shape == (2, 2)
    rb.update_tensordict_priority(batch.set("td_error", torch.tensor([[0.0, 0.0], [2.0, 2.0]])))
    with pytest.raises(InvalidArgumentError):
        rb[0].sample(1)
    assert rb[1].sample(1)["value"].tolist() == [10_004]


def test_an_epoch_ends_when_a_buffer_runs_out():
    rb = ReplayBufferEnsemble(
        member(0, 8, sampler=SamplerWithoutReplacement()),
        member(1, 8, sampler=SamplerWithoutReplacement()),
        sample_from_all=True,
        batch_size=4,
    )

    assert sorted(torch.cat([batch["value"][0] for batch in rb]).tolist()) == list(range(8))


def test_a_loaded_ensemble_gives_the_batches_of_the_original(tmp_path):
    def made():
        return ReplayBufferEnsemble(
            *(member(number, sampler=SamplerWithoutReplacement()) for number in range(2)),
            p=[1, 2],
            generator=torch.Generator().manual_seed(1),
        )

    rb, other = made(), made()
    rb.sample(10)
    rb[0].extend(TensorDict({"value": torch.tensor([-1])}, [1]))
    rb.dumps(tmp_path / "dump")
    other.loads(tmp_path / "dump")

    for _ in range(4):
        assert other.sample(10)["value"].tolist() == rb.sample(10)["value"].tolist()
    assert other[0, 0]["value"] == -1


def test_batches_are_prefetched_while_members_are_written():
    rb = ReplayBufferEnsemble(member(0), member(1), batch_size=8, prefetch=2)
    stop = threading.Event()

    def write():
        while not stop.is_set():
            rb[0].extend(TensorDict({"value": torch.arange(3)}, [3]))

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(30):
        batch = rb.sample()
        assert torch.equal(batch["value"] // 10_000, batch["index", "buffer_ids"])
    stop.set()
    writer.join(10)
    rb._prefetch.close()


def test_data_other_than_tensordicts_is_stacked():
    buffers = [ReplayBuffer(storage=LazyTensorStorage(4)) for _ in range(2)]
    for number, one in enumerate(buffers):
        one.extend(torch.full((4, 3), float(number)))
    rb = ReplayBufferEnsemble(*buffers, sample_from_all=True, batch_size=4)

    assert rb.sample().shape == (2, 2, 3)
    assert "ReplayBufferEnsemble(" in repr(rb)
    assert len(rb) == 2


class TestAsABuffer:
    def test_full_rings_and_their_priorities_load_in_order_into_larger_ones(self):
        def made(slots):
            members = [member(n, 0, sampler=PrioritizedSampler(slots, 1.0, 1.0), slots=slots) for n in range(2)]
            return ReplayBufferEnsemble(*members, batch_size=4)

        original = made(6)
        for one in (original[0], original[1]):
            one.extend(TensorDict({"value": torch.arange(9), "td_error": torch.arange(9.0)}, [9]))
        larger = made(10)
        larger.load_state_dict(original.state_dict())

        for one in (larger[0], larger[1]):
            assert one[:]["value"].tolist() == [3, 4, 5, 6, 7, 8]
            assert one.sampler.priorities.tolist() == [3, 4, 5, 6, 7, 8]

    def test_prefetched_batches_are_saved(self, tmp_path):
        original = ReplayBufferEnsemble(member(0), member(1), batch_size=4, prefetch=2)
        original.sample()
        original.dumps(tmp_path)
        again = ReplayBufferEnsemble(member(0, 20), member(1, 20), batch_size=4, prefetch=2)
        again.loads(tmp_path)

        for _ in range(2):
            (left, said), (right, known) = (rb.sample(return_info=True) for rb in (original, again))
            assert (left == right).all()
            assert (said["index"] == known["index"]).all()
        for rb in (original, again):
            rb._prefetch.close()

    def test_ensembles_of_ensembles_are_refused(self, rb):
        with pytest.raises(InvalidArgumentError, match=r"buffers \[0\] are ensembles themselves"):
            ReplayBufferEnsemble(rb, member(2))

    @pytest.mark.parametrize("part", [RandomSampler(), RoundRobinWriter(), LazyTensorStorage(3)])
    def test_its_components_cannot_be_replaced(self, rb, part):
        verb = {RandomSampler: "sampler", RoundRobinWriter: "writer", LazyTensorStorage: "storage"}[type(part)]
        before = getattr(rb, verb)
        with pytest.raises(InvalidArgumentError, match="cannot become a component of an ensemble"):
            getattr(rb, f"set_{verb}")(part)

        assert getattr(rb, verb) is before

    def test_emptying_it_drops_the_prefetched_batches_of_its_buffers(self):
        ahead = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4, prefetch=2)
        ahead.extend(TensorDict({"value": torch.zeros(5)}, [5]))
        ahead.sample()
        rb = ReplayBufferEnsemble(ahead, batch_size=4)
        rb.empty()
        ahead.extend(TensorDict({"value": torch.ones(5)}, [5]))

        assert ahead.sample()["value"].tolist() == [1] * 4
        ahead._prefetch.close()

    def test_priorities_go_by_the_index_of_a_batch(self):
        rb = ReplayBufferEnsemble(
            *(member(n, 20, sampler=PrioritizedSampler(20, 1.0, 1.0)) for n in range(2)), sample_from_all=True
        )
        batch, info = rb.sample(8, return_info=True)
        for index in (batch["index"], info["index"]):
            priority = torch.arange(1.0, 9.0).reshape(2, 4) + torch.rand(())
            rb.update_priority(index, priority)
            for n in range(2):
                row = int(batch["index", "index"][n, 3])
                assert rb[n].sampler.priorities[row] == pytest.approx(float(priority[n, 3]))

    def test_its_length_sharing_and_repr_are_those_of_its_buffers(self, rb):
        assert rb.write_count == 40
        assert "value" in rb._repr_html_()
        rb.share()
        assert all(rb[number].lock.shared for number in range(2))
        with pytest.raises(InvalidArgumentError, match="does not select a buffer"):
            rb["value"]

    def test_one_buffer_may_be_a_member_several_times(self):
        one = member(0)
        rb = ReplayBufferEnsemble(one, one, sample_from_all=True)

        assert rb.sample(6)["index", "buffer_ids"].tolist() == [[0] * 3, [1] * 3]
