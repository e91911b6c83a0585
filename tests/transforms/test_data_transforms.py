"""Transforms of actions, rewards, next states, marks and novelty, beyond the properties of every transform."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from datasets_rl import BoundedTensorSpec, CompositeSpec, LazyTensorStorage, RandomSampler, TensorDictReplayBuffer
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.transforms import (
    ActionDiscretizer,
    ActionScaling,
    ActionTokenizerTransform,
    CatFrames,
    CatTensors,
    ClipTransform,
    DecodeVideoTransform,
    DiscreteActionProjection,
    FiniteTensorDictCheck,
    FlattenAction,
    Hash,
    InitTracker,
    LineariseRewards,
    ModuleTransform,
    NextObservationDelta,
    NextStateReconstructor,
    ObservationTransform,
    PolicyAgeFilter,
    RemoveEmptySpecs,
    Reward2GoTransform,
    RNDTransform,
    Stack,
    TimeMaxPool,
    Tokenizer,
    TrajCounter,
    UnaryTransform,
    VecNorm,
    VecNormV2,
)
from datasets_rl.transforms.functional import cat_frames, rgb_to_grayscale


def steps(lengths=(3, 2)):
    """Return the steps of trajectories; observations count from 0."""
    count = sum(lengths)
    done = torch.zeros(count, 1, dtype=torch.bool)
    done[torch.tensor(lengths).cumsum(0) - 1] = True
    observation = torch.arange(count + 1.0).unsqueeze(-1)
    return TensorDict(
        {
            "observation": observation[:-1],
            "next": {"observation": observation[1:], "reward": torch.ones(count, 1), "done": done},
        },
        [count],
    )


def buffer(transform, **arguments):
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=RandomSampler(), transform=transform, batch_size=32, **arguments
    )


class TestActions:
    def test_statistics_give_the_scale(self):
        action = torch.tensor([[-2.0, 0.0], [4.0, 1.0]])

        assert ActionScaling.from_stats(low=[-2, 0], high=[4, 1]).normalize(action).tolist() == [[-1, -1], [1, 1]]
        assert ActionScaling.from_stats(mean=[1, 0], std=[3, 0]).denormalize(torch.ones(2)).tolist() == pytest.approx(
            [4, 1e-6]
        )
        with pytest.raises(InvalidArgumentError, match="either mean and std, or low and high"):
            ActionScaling.from_stats(mean=[1], low=[2])

    def test_statistics_of_a_robot_dataset_give_the_scale(self):
        class Metadata:
            action_key, action_mean, action_std = "act", None, None
            action_low, action_high = torch.tensor([0.0]), torch.tensor([2.0])

        scaling = ActionScaling.from_metadata(Metadata(), in_keys_inv=[])
        assert (scaling.in_keys, scaling.loc, scaling.scale) == (["act"], 1, 1)
        Metadata.action_low = None
        with pytest.raises(InvalidArgumentError, match="no statistics of actions"):
            ActionScaling.from_metadata(Metadata())

    def test_written_actions_keep_their_scale_without_inverse_keys(self):
        rb = buffer(ActionScaling(loc=0.0, scale=2.0, in_keys_inv=[]))
        rb.extend(steps().set("action", torch.full((5, 1), 2.0)))

        assert (rb.sample()["action"] == 1).all()
        assert (rb.storage.get(slice(None))["action"] == 2).all()

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: ActionScaling(loc=1.0), "loc is 1.0 and scale is None"),
            (lambda: ActionScaling(loc=[1], scale=[0]), "expected no 0"),
            (lambda: ActionScaling(["a", "b"]), "expected a single key"),
            (lambda: ActionScaling().normalize(torch.ones(2)), "are not set"),
            (lambda: ActionScaling(loc=torch.ones(2), scale=1.0).normalize(torch.ones(3)), r"expected \[..., 2\]"),
            (lambda: FlattenAction(0, 1), "first_dim is 0, expected a negative axis"),
            (lambda: FlattenAction(-1, -2), "expected at most last_dim"),
            (lambda: FlattenAction().invert_value(torch.ones(6)), "shape of the merged axes is unknown"),
            (lambda: DiscreteActionProjection(3, 2), "max_actions is 2"),
            (lambda: DiscreteActionProjection(2, 3).invert_value(torch.ones(4)), "has 4 elements, expected 3"),
            (lambda: ActionDiscretizer(3), "expected a spec with finite bounds"),
            (lambda: ActionTokenizerTransform(object()), "an object with encode and decode"),
            (lambda: ActionTokenizerTransform(object(), mode="x"), "mode is 'x'"),
            (lambda: ClipTransform(["a"]), "both missing"),
            (lambda: ClipTransform(["a"], low=1, high=0), "expected low < high"),
            (lambda: ClipTransform(["a"], low=torch.ones(2)), "expected a single number"),
            (lambda: LineariseRewards(["a"], weights=torch.ones(2, 2)), r"expected \[R\]"),
            (lambda: LineariseRewards(["a"], weights=[1]).transform_value(torch.ones(2)), "2 rewards and 1 weights"),
            (lambda: Stack(["a"], "b", dim=0), "expected a negative axis"),
            (lambda: Stack(["a"], "a"), "which is in in_keys"),
            (lambda: Stack(["a"], "b", "c"), "expected both in_key_inv and out_keys_inv"),
            (lambda: NextObservationDelta(delta_dtype=torch.int8), "delta_dtype is torch.int8"),
            (lambda: NextStateReconstructor()(steps().reshape(1, 5)), r"the batch size is \[1, 5\]"),
            (lambda: PolicyAgeFilter(1, -1), "expected an integer >= 0"),
            (ModuleTransform, "exactly one of module and module_factory"),
            (lambda: DecodeVideoTransform(in_keys=["observation"])(steps()), "references with a method decode"),
            (lambda: VecNormV2(["a"], stateful=False, reduce_batch_dims=True), "expected stateful=True"),
            (lambda: VecNormV2(["a"]).loc, "has no statistics"),
            (
                lambda: cat_frames(torch.ones(3), 2, 0, time_dim=0, padding="x"),
                "dim is 0.*time_dim is 0.*padding is 'x'",
            ),
            (lambda: rgb_to_grayscale(torch.ones(1, 2, 2)), r"shape \[1, 2, 2\], expected \[..., 3, H, W\]"),
            (lambda: rgb_to_grayscale(torch.ones(3, 2, 2), 2), "expected 1 or 3"),
            (lambda: CatTensors()(TensorDict(a=torch.ones(2))), "expected states"),
        ],
    )
    def test_invalid_arguments_and_data_are_refused(self, make, message):
        with pytest.raises(InvalidArgumentError, match=message):
            make()

    def test_actions_that_do_not_exist_become_random(self):
        projection = DiscreteActionProjection(2, 4)
        back = projection.inv(TensorDict(action=torch.eye(4).long()[[0, 1, 3, 2]]))["action"]

        assert back.shape == (4, 2)
        assert back[:2].tolist() == [[1, 0], [0, 1]]
        assert (back.sum(-1) == 1).all()

    @pytest.mark.parametrize(("sampling", "values"), [("LOW", [0, 2, 4]), ("HIGH", [2, 4, 6]), ("MEDIAN", [1, 3, 5])])
    def test_numbers_of_intervals_stand_for_a_value(self, sampling, values):
        strategy = ActionDiscretizer.SamplingStrategy[sampling]
        spec = BoundedTensorSpec(0, 6, ())
        transform = ActionDiscretizer(3, sampling=strategy, action_spec=spec)
        data = TensorDict(action=torch.tensor([0.0, 2.0, 6.0]), batch_size=[3])

        assert transform(data)["action"].tolist() == [0, 1, 2]
        assert transform.inv(transform(data))["action"].tolist() == values

    def test_random_values_are_in_their_interval(self):
        spec = BoundedTensorSpec(-1, 1, (2,))
        strategy = ActionDiscretizer.SamplingStrategy.RANDOM
        transform = ActionDiscretizer(torch.tensor([4, 3]), sampling=strategy, categorical=False, action_spec=spec)
        numbers = transform(TensorDict(action=torch.rand(50, 2) * 2 - 1))

        assert numbers["action"].shape == (50, 7)
        assert torch.equal(transform(transform.inv(numbers))["action"], numbers["action"])

    def test_tokens_are_decoded_when_they_are_written(self):
        class Tens:
            encode = staticmethod(lambda action: (action * 10).long())
            decode = staticmethod(lambda tokens: tokens / 10)

        transform = ActionTokenizerTransform(Tens(), out_key="tokens")
        data = TensorDict(action=torch.tensor([0.5]))
        assert transform(data)["tokens"].tolist() == [5]
        assert transform.inv(data) is not data
        assert "tokens" not in transform.inv(data)
        assert transform.inv(TensorDict(tokens=torch.tensor([5])))["action"].tolist() == [0.5]
        other = ActionTokenizerTransform(Tens(), out_key="tokens", mode="decode")
        assert (other.in_key, other.out_key) == ("action", "tokens")
        assert other(TensorDict(tokens=torch.tensor([5])))["action"].tolist() == [0.5]


class TestNextStates:
    def test_differences_are_stored_in_place_of_next_states(self):
        rb = buffer(NextObservationDelta())
        rb.extend(data := steps())
        batch = rb.sample()

        stored = rb.storage.get(slice(None))
        assert stored["next", "delta", "observation"].dtype == torch.float16
        assert ("next", "observation") not in stored.keys(True)
        assert torch.equal(batch["next", "observation"], batch["observation"] + 1)
        assert "delta" not in batch["next"]
        assert ("next", "observation") in data.keys(True)

    def test_next_states_are_those_of_the_next_row(self):
        data = steps((3, 2)).exclude(("next", "observation"))
        data["collector", "traj_ids"] = torch.tensor([0, 0, 0, 1, 1])
        data["step"] = torch.tensor([0, 1, 2, 0, 9])
        result = NextStateReconstructor()(data)["next", "observation"].flatten().tolist()

        assert result[:2] + result[3:4] == [1, 2, 4]
        assert math.isnan(result[2])
        assert math.isnan(result[4])
        strict = NextStateReconstructor(step_count_key="step", fill_value=-1.0)
        assert strict(data)["next", "observation"].flatten().tolist() == [1, 2, -1, -1, -1]
        loose = NextStateReconstructor(traj_key="nothing", strict=False, fill_value=-1.0)
        assert loose(data)["next", "observation"].flatten().tolist() == [1, 2, -1, 4, -1]
        with pytest.raises(UnknownKeyError, match="nothing"):
            NextStateReconstructor(traj_key="nothing")(data)
        with pytest.raises(TypeError, match=r"step has the non-floating dtype torch\.int64, which has no NaN"):
            NextStateReconstructor(["step"])(data)
        assert NextStateReconstructor(["step"], fill_value=-1)(data)["next", "step"].tolist() == [1, 2, -1, 9, -1]


class TestFilters:
    def test_numbers_that_are_not_finite_are_found(self):
        FiniteTensorDictCheck()(steps())
        with pytest.raises(InvalidArgumentError, match=r"reward.*not finite"):
            FiniteTensorDictCheck()(steps().set(("next", "reward"), torch.full((5, 1), math.inf)))

    def test_steps_of_old_policies_are_neither_written_nor_sampled(self):
        now = [3]
        rb = buffer(PolicyAgeFilter(lambda: now[0], 1))
        rb.extend(steps().set("policy_version", torch.arange(5)))
        assert len(rb) == 3
        assert rb.extend(steps().set("policy_version", torch.zeros(5))).numel() == 0
        now[0] = 5
        assert set(rb.sample()["policy_version"].tolist()) == {4}

    def test_steps_without_version_are_kept_with_a_warning(self):
        with pytest.warns(UserWarning, match="no policy_version"):
            assert len(PolicyAgeFilter(1, 0)(steps())) == 5
        with pytest.raises(UnknownKeyError):
            PolicyAgeFilter(1, 0, strict=True)(steps())

    def test_groups_without_entries_are_removed(self):
        data = TensorDict(a=TensorDict(b=TensorDict()), c=TensorDict(d=torch.ones(()), e=TensorDict()))
        result = RemoveEmptySpecs()(data)

        assert list(result.keys(True, True)) == [("c", "d")]
        assert ("c", "e") in data.keys(True)
        spec = CompositeSpec(a=CompositeSpec(b=CompositeSpec()), c=BoundedTensorSpec(0, 1, ()))
        assert list(RemoveEmptySpecs().transform_spec(spec).keys()) == ["c"]


class TestTime:
    def test_first_steps_and_trajectories_are_those_of_the_storage(self):
        rb = buffer([InitTracker(), TrajCounter(), TimeMaxPool(T=2)])
        rb.extend(steps())
        rb.extend(steps((1,)).set("observation", torch.tensor([[-7.0]])))
        batch = rb.sample(64)
        rows = dict(zip(batch["index"].tolist(), batch, strict=True))

        assert [rows[row]["is_init"].item() for row in range(6)] == [True, False, False, True, False, True]
        assert [rows[row]["traj_count"].item() for row in range(6)] == [0, 0, 0, 1, 1, 2]
        assert [rows[row]["observation"].item() for row in range(6)] == [0, 1, 2, 3, 4, 0]
        assert not batch["next", "is_init"].any()

    def test_stacks_are_also_made_of_the_steps_of_a_batch(self):
        frames = CatFrames(2, -1, ["observation"], ["stack"])

        assert frames.unfolding(steps())["stack"].tolist() == [[0, 0], [0, 1], [1, 2], [3, 3], [3, 4]]

    def test_a_buffer_of_frames_returns_stacks(self):
        frames = CatFrames(2, -1, ["observation"], ["stack"])
        transform, sampler = frames.make_rb_transform_and_sampler(8)
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(9), sampler=sampler, transform=transform, batch_size=8)
        rb.extend(steps().set("stack", torch.zeros(5, 2)))

        assert "stack" not in rb.storage.get(slice(None))
        batch = rb.sample()
        assert torch.equal(batch["stack"][:, 1:], batch["observation"])
        assert torch.equal(batch["next", "stack"][:, 1:], batch["next", "observation"])

    def test_rewards_to_go_of_trajectories_inside_of_entries(self):
        data = TensorDict(
            next=TensorDict(reward=torch.ones(2, 3, 1), done=torch.tensor([0, 0, 1]).bool().expand(2, 3)[..., None])
        )
        data.batch_size = [2]

        assert Reward2GoTransform(0.5).inv(data)["next", "reward"][1].flatten().tolist() == [1.75, 1.5, 1]


class TestNorms:
    def test_normalized_entries_are_restored(self):
        norm = VecNorm()
        data = steps()
        result = norm(data)

        torch.testing.assert_close(norm.denorm(result)["observation"], data["observation"])
        assert norm.loc["next", "reward"] == 1
        assert norm.scale["next", "reward"] == pytest.approx(1e-4)
        copy = norm.frozen_copy()
        norm(data.apply(lambda value: value + 9))
        assert copy.frozen
        assert copy.loc["observation"] == 2
        assert norm.loc["observation"] > 6

    def test_processes_share_statistics(self):
        shared = TensorDict(
            observation_sum=torch.zeros(1), observation_ssq=torch.zeros(1), observation_count=torch.zeros(1)
        )
        shared.share_memory_()
        first, second = (VecNorm(["observation"], shared_td=shared, decay=1.0) for _ in range(2))
        first(steps())
        second(steps())

        assert shared["observation_count"] == 10
        assert first.loc["observation"] == second.loc["observation"] == 2
        assert second.frozen_copy().scale["observation"] == pytest.approx(2**0.5)
        with pytest.raises(UnknownKeyError, match=r"next\.reward_sum"):
            VecNorm(shared_td=shared)

    def test_statistics_have_a_given_shape(self):
        norm = VecNorm(["a"], shapes=[()])
        norm(TensorDict(a=torch.arange(6.0).reshape(3, 2), batch_size=[3]))

        assert norm.loc["a"] == 2.5

    def test_the_other_class_is_an_argument_of_the_first(self):
        norm = VecNorm(["observation"], new_api=True, decay=0.5, reduce_batch_dims=True)
        result = norm(steps())

        assert isinstance(norm, VecNormV2)
        torch.testing.assert_close(norm.denorm(result)["observation"], steps()["observation"])
        torch.testing.assert_close(norm.to_observation_norm()(steps())["observation"], result["observation"])

    @pytest.mark.parametrize("norm", [VecNorm, VecNormV2])
    def test_a_small_deviation_beside_a_large_mean_is_found(self, norm):
        """Values 99,999 and 100,001 have mean 100,000 and deviation 1; their squares have 10 digits, and float32 has 7."""
        values = torch.tensor([[99_999.0], [100_001.0]]).repeat(8, 1)
        options = {"reduce_batch_dims": True} if norm is VecNormV2 else {}
        transform = norm(["observation"], decay=1.0, **options)
        for _ in range(3):
            result = transform(TensorDict({"observation": values}, [16]))

        assert result["observation"].dtype == torch.float32
        torch.testing.assert_close(result["observation"], torch.tensor([[-1.0], [1.0]]).repeat(8, 1))

    def test_moving_averages_may_be_part_of_the_batch(self):
        norm = VecNormV2(["observation"], stateful=False, decay=0.5)
        held = VecNormV2(["observation"], decay=0.5)
        first, second = norm(steps()), held(steps())
        again = norm(first.copy().set("observation", steps()["observation"] + 1))

        assert torch.equal(first["observation"], second["observation"])
        assert torch.equal(again["observation"], held(steps().apply(lambda value: value + 1))["observation"])
        assert (again["_vecnorm_count", "observation"] == 2).all()
        assert not norm.state_dict()

    def test_the_novelty_of_seen_states_has_a_running_scale(self):
        torch.manual_seed(0)
        novelty = RNDTransform(nn.Linear(1, 4), nn.Linear(1, 4))
        result = novelty(steps())
        assert result["next", "intrinsic_reward"].shape == (5, 1)
        assert novelty.obs_rms.mean == pytest.approx(3, abs=1e-3)
        other = RNDTransform(nn.Linear(1, 4), nn.Linear(1, 4)).eval()
        other.load_state_dict(novelty.state_dict())
        assert torch.equal(
            other(steps())["next", "intrinsic_reward"], novelty.eval()(steps())["next", "intrinsic_reward"]
        )
        assert not novelty.target_network.weight.requires_grad


class TestOthers:
    def test_a_module_runs_on_reads_or_on_writes(self):
        def module(batch):
            return batch.set("sum", batch["observation"] + 1)

        rb = buffer(ModuleTransform(module_factory=lambda: module, inverse=True))
        rb.extend(data := steps())
        assert "sum" in rb.storage.get(slice(None))
        assert "sum" not in data
        assert "sum" in ModuleTransform(module=module)(data)

    def test_stacks_are_split_when_they_are_written(self):
        stack = Stack([("a", "x"), ("b", "x")], "both", "both", [("a", "x"), ("b", "x")], dim=-2)
        data = TensorDict(a=TensorDict(x=torch.ones(2)), b=TensorDict(x=torch.zeros(2)))
        result = stack(data)

        assert list(result.keys()) == ["both"]
        assert result["both"].tolist() == [[1, 1], [0, 0]]
        assert torch.equal(stack.inv(result)["a", "x"], data["a", "x"])
        assert "a" in stack.inv(data)
        with pytest.raises(InvalidArgumentError, match="has 3 parts, expected 2"):
            stack.inv(TensorDict(both=torch.ones(3, 2)))

    def test_states_are_concatenated_by_default(self):
        data = (
            steps()
            .set("goal", torch.zeros(5, 2))
            .set(("next", "goal"), torch.zeros(5, 2))
            .set("action", torch.ones(5, 1))
        )

        assert CatTensors()(data)["observation_vector"].shape == (5, 3)
        assert CatTensors(del_keys=False)(data)["observation_vector"][1].tolist() == [0, 0, 1]

    def test_video_references_decode_themselves(self):
        class Reference:
            def decode(self, device=None, dtype=None):
                return torch.ones(3, dtype=dtype, device=device)

        assert (
            DecodeVideoTransform(in_keys=["clip"], dtype=torch.uint8).transform_value(Reference()).dtype == torch.uint8
        )

    def test_observation_transforms_have_default_keys(self):
        assert ObservationTransform().in_keys == ["observation", "pixels"]

    def test_functions_may_read_non_tensor_entries_as_they_are_stored(self):
        data = TensorDict(text=["a", "bc"], batch_size=[2])
        seen = []
        UnaryTransform(["text"], ["length"], fn=lambda raw: seen.append(raw) or torch.ones(2), use_raw_nontensor=True)(
            data
        )
        assert type(seen[0]).__name__.startswith("NonTensor")
        tokenizer = Tokenizer(["text"], ["tokens"], tokenizer=lambda _: [[1], [2, 3]], use_raw_nontensor=True)
        assert tokenizer(data)["tokens"].tolist() == [[1, 0], [2, 3]]

    def test_tokens_are_added_to_a_vocabulary(self):
        class Vocabulary(list):
            add_tokens = list.extend

            def __call__(self, text):
                return [self.index(letter) for letter in text]

        vocabulary = Vocabulary("ab")
        tokenizer = Tokenizer(["text"], ["tokens"], tokenizer=vocabulary, additional_tokens=["c"])
        assert tokenizer(TensorDict(text="cab", batch_size=[]))["tokens"].tolist() == [2, 0, 1]

    def test_hashes_are_looked_up(self):
        transform = Hash(["text"], ["hash"], ["text"], ["hash"], seed="s")
        digest = transform(TensorDict(text="a", batch_size=[]))["hash"]

        assert torch.equal(digest, Hash.reproducible_hash("sa"))
        assert torch.equal(Hash.reproducible_hash(None), Hash.reproducible_hash(""))
        assert transform.get_input_from_hash(digest) == "a"
        assert Hash.hash_to_repertoire_key(torch.tensor([[1, 2]])) == ((1, 2),)
