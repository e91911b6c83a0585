"""Transforms of single entries: keys, axes, dtypes, numbers and text."""

from __future__ import annotations

import pickle
from itertools import pairwise

import pytest
import torch
from stored_data import trajectory, write_dataset
from tensordict import TensorDict
from torch import nn

from datasets_rl import LazyTensorStorage, ListStorage, ReplayBuffer, TensorDictReplayBuffer
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.schema import Schema
from datasets_rl.specs import (
    BoundedTensorSpec,
    CompositeSpec,
    NonTensorSpec,
    OneHotDiscreteTensorSpec,
    UnboundedContinuousTensorSpec,
    UnboundedDiscreteTensorSpec,
)
from datasets_rl.transforms import (
    BurnInTransform,
    CatFrames,
    CatTensors,
    Compose,
    DeviceCastTransform,
    DoubleToFloat,
    DTypeCastTransform,
    ExcludeTransform,
    FlattenObservation,
    Hash,
    ObservationNorm,
    PermuteTransform,
    RandomCropTensorDict,
    RenameTransform,
    RewardClipping,
    RewardScaling,
    SelectTransform,
    SignTransform,
    Tokenizer,
    ToTensorImage,
    Transform,
    UnaryTransform,
    UnsqueezeTransform,
    VecNorm,
    split_trajectories,
    step_mdp,
)


def one(**entries):
    return TensorDict({key: torch.as_tensor(value) for key, value in entries.items()}, [])


def keys(data):
    return set(data.keys(include_nested=True, leaves_only=True))


class TestKeys:
    def test_two_entries_can_be_swapped(self):
        made = RenameTransform(["a", "b"], ["b", "a"])(one(a=1, b=2))

        assert (made["a"], made["b"]) == (2, 1)

    def test_an_empty_group_is_removed(self):
        """Otherwise parts of an ensemble could not be stacked."""
        made = RenameTransform([("some", "key")], ["renamed"])(TensorDict({("some", "key"): torch.ones(2)}, [2]))

        assert set(made.keys()) == {"renamed"}

    def test_entries_are_renamed_on_write(self):
        rb = TensorDictReplayBuffer(
            storage=LazyTensorStorage(2), transform=RenameTransform(["inner"], ["outer"], ["inner"], ["outer"])
        )
        rb.extend(TensorDict({"outer": torch.ones(2)}, [2]))

        assert set(rb.storage.get(slice(None)).keys()) == {"inner"}
        assert keys(rb[:]) == {"outer"}

    def test_rewards_and_flags_at_the_root_are_kept_by_default(self):
        data = one(a=1, b=2, done=True, reward=0.5)

        assert keys(SelectTransform("a")(data)) == {"a", "done", "reward"}
        assert keys(SelectTransform("a", keep_rewards=False, keep_dones=False)(data)) == {"a"}

    def test_excluded_entries_are_not_written(self):
        transform = ExcludeTransform("big", inverse=True)
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(3), transform=transform)
        rb.extend(TensorDict({"big": torch.ones(2, 9), "a": torch.ones(2)}, [2]))
        rb.add(one(big=1, a=1.0))

        assert set(rb[:].keys()) == {"a"}
        assert len(rb) == 3

    def test_in_keys_and_out_keys_have_the_same_length(self):
        with pytest.raises(
            InvalidArgumentError,
            match=r"in_keys are \['a'\] and out_keys are \['b', 'c'\], expected the same number of keys",
        ):
            RenameTransform(["a"], ["b", "c"])


class TestAxes:
    def test_entries_are_concatenated_by_name(self):
        data = TensorDict({"b": torch.ones(2, 1), "a": torch.zeros(2, 2)}, [2])

        assert CatTensors(["b", "a"])(data)["observation_vector"].tolist() == [[0, 0, 1]] * 2
        joints = TensorDict({f"joint_{number}": torch.full((1,), number) for number in (0, 1, 10, 2)}, [])
        assert CatTensors(list(joints.keys()))(joints)["observation_vector"].tolist() == [0, 1, 2, 10]
        assert CatTensors(["b", "a"], sort=False)(data)["observation_vector"].tolist() == [[1, 0, 0]] * 2

    def test_scalars_get_an_axis(self):
        data = TensorDict({"a": torch.zeros(2, 2), "b": torch.ones(2)}, [2])

        assert CatTensors(["a", "b"], unsqueeze_if_oor=True)(data)["observation_vector"].tolist() == [[0, 0, 1]] * 2
        with pytest.raises(InvalidArgumentError, match=r"a \[2, 2\], b \[2\] cannot be concatenated along axis -1"):
            CatTensors(["a", "b"])(data)

    @pytest.mark.parametrize("make", [lambda: UnsqueezeTransform(0), lambda: FlattenObservation(1, -1)])
    def test_axes_are_counted_from_the_end(self, make):
        with pytest.raises(
            InvalidArgumentError, match="expected a negative axis, which is independent of the batch size"
        ):
            make()

    def test_nonnegative_axes_are_accepted_on_request(self):
        data = TensorDict({"a": torch.zeros(2, 3, 4)}, [2])

        assert UnsqueezeTransform(1, allow_positive_dim=True, in_keys=["a"])(data)["a"].shape == (2, 1, 3, 4)
        assert FlattenObservation(1, 2, ["a"], allow_positive_dim=True)(data)["a"].shape == (2, 12)

    def test_permutations_have_each_axis_once(self):
        with pytest.raises(InvalidArgumentError, match=r"dims are \(-1, -3\), expected each of \[-2, -1\] once"):
            PermuteTransform((-1, -3))

    def test_inverses_of_one_axis(self):
        data = TensorDict({"a": torch.arange(24).reshape(1, 2, 3, 4)}, [1])
        there = PermuteTransform((-1, -3, -2), ["a"], None, ["a"])

        assert there(data)["a"].shape == (1, 4, 2, 3)
        assert torch.equal(there.inv(there(data))["a"], data["a"])


class TestCasts:
    def test_every_entry_of_the_dtype(self):
        data = TensorDict({"a": torch.zeros(1).double(), "b": {"c": torch.zeros(1).double()}, "d": torch.zeros(1)}, [])
        made = DoubleToFloat()(data)

        assert {leaf.dtype for leaf in made.values(True, True)} == {torch.float32}

    def test_written_data_is_cast_for_inverse_keys(self):
        transform = DTypeCastTransform(torch.float16, torch.float32, ["a"], None, ["a"])
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(2), transform=transform, batch_size=2)
        rb.extend(TensorDict({"a": torch.ones(2), "b": torch.ones(2)}, [2]))

        assert rb.storage.get(0)["a"].dtype == torch.float16
        assert rb.storage.get(0)["b"].dtype == torch.float32
        assert rb.sample()["a"].dtype == torch.float32

    def test_a_batch_has_its_device(self):
        assert DeviceCastTransform("cpu")(one(a=1)).device == torch.device("cpu")
        assert DeviceCastTransform("meta", in_keys=["a"])(one(a=1, b=2))["a"].device.type == "meta"

    def test_a_batch_is_moved_as_one_block(self):
        batch = TensorDict({"a": torch.ones(4, 3), "next": {"b": torch.zeros(4, 1, dtype=torch.bool)}}, [4])
        moved = DeviceCastTransform("meta")(batch.copy())

        a, b = moved["a"].untyped_storage(), moved["next", "b"].untyped_storage()
        assert a.nbytes() == b.nbytes() >= 4 * 3 * 4 + 4
        moved["c"] = torch.ones(4)
        assert moved["next", "b"].shape == (4, 1)
        assert not batch["a"].is_meta

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    def test_a_batch_on_a_gpu_has_the_values_of_its_block(self):
        moved = DeviceCastTransform("cuda")(one(a=1, b=2))

        assert (moved["a"].item(), moved["b"].item()) == (1, 2)
        assert moved["a"].untyped_storage().data_ptr() == moved["b"].untyped_storage().data_ptr()

    def test_written_data_is_restored_when_sampled(self):
        transform = DeviceCastTransform("meta", "cpu")

        assert [data["a"].device.type for data in transform.inv([one(a=1)])] == ["cpu"]
        assert transform.inv(one(a=1)).device.type == "cpu"
        assert DeviceCastTransform("meta").inv(one(a=1)).device is None


class TestNorms:
    def test_both_conventions_of_normalization(self):
        data = one(observation=[1.0, 3.0])
        affine = ObservationNorm(1.0, 2.0, ["observation"])
        normal = ObservationNorm(1.0, 2.0, ["observation"], standard_normal=True)

        assert affine(data)["observation"].tolist() == [3, 7]
        assert normal(data)["observation"].tolist() == [0, 1]

    def test_floats_keep_their_dtype_and_bytes_become_floats(self):
        norm = ObservationNorm(torch.zeros(2).double(), 1.0, ["a"])

        assert norm(one(a=torch.ones(2)))["a"].dtype == torch.float32
        assert norm(one(a=torch.ones(2).double()))["a"].dtype == torch.float64
        assert ObservationNorm(0.0, 1.0, ["a"])(one(a=torch.ones(2, dtype=torch.uint8)))["a"].dtype == torch.float32

    def test_statistics_of_a_dataset_are_read_from_its_manifest(self, tmp_path):
        stored = write_dataset(tmp_path, [trajectory(20), trajectory(30, seed=1)])
        observations = torch.from_numpy(stored.column(("observation",)).copy())
        norm = ObservationNorm(standard_normal=True).init_stats(stored)
        other = ObservationNorm().init_stats(stored.manifest, key=("next", "observation"))
        normal = norm.transform_value(observations)

        torch.testing.assert_close(normal.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
        torch.testing.assert_close(normal.std(0, correction=0), torch.ones(3), atol=1e-5, rtol=0)
        torch.testing.assert_close(other.transform_value(observations), normal, atol=1e-4, rtol=1e-4)
        with pytest.raises(UnknownKeyError, match="no key 'nothing' among"):
            norm.init_stats(stored, key="nothing")

    def test_statistics_of_data(self):
        data = TensorDict({"observation": torch.tensor([[1.0, 5.0], [3.0, 5.0]])}, [2])
        norm = ObservationNorm(standard_normal=True, in_keys=["observation"]).init_stats(data)

        assert norm(data)["observation"].tolist() == [[-1, 0], [1, 0]]
        assert norm.init_stats(data["observation"], reduce_dim=(0, 1)).loc == 3.5
        with pytest.raises(InvalidArgumentError, match="source is a dict, expected a dataset"):
            norm.init_stats({})

    def test_missing_statistics_are_an_error(self):
        with pytest.raises(InvalidArgumentError, match="are not set\npass both"):
            ObservationNorm(in_keys=["a"])(one(a=1.0))

    def test_an_invalid_state_is_refused(self):
        with pytest.raises(InvalidArgumentError, match=r'the saved state does not fit: .*"loc", expected'):
            ObservationNorm(0.0, 1.0).load_state_dict({"loc": 3, "scale": torch.ones(1)})

    def test_rewards_are_under_next(self):
        data = TensorDict({"next": {"reward": torch.tensor([1.0, 5.0])}}, [])

        assert RewardScaling(1.0, 2.0)(data)["next", "reward"].tolist() == [3, 11]
        assert RewardScaling(1.0, 2.0, standard_normal=True)(data)["next", "reward"].tolist() == [0, 2]
        assert RewardClipping(2, 4)(data)["next", "reward"].tolist() == [2, 4]
        with pytest.raises(InvalidArgumentError, match="expected at least one number"):
            RewardClipping()

    def test_invalid_statistics_are_refused(self):
        manifest = Manifest(
            id="a/b",
            steps=1,
            episodes=1,
            final_unknown=0,
            schema=Schema([]),
            files=(),
            statistics={"a": {"mean": None}},
        )

        with pytest.raises(
            InvalidArgumentError, match="the mean of a is None and its standard deviation is None, expected numbers"
        ):
            ObservationNorm().init_stats(manifest, key="a")

    def test_signs_of_written_data_are_taken(self):
        transform = SignTransform(in_keys_inv=["a"])

        assert transform.inv(one(a=[-3.0, 0.0, 2.0]))["a"].tolist() == [-1, 0, 1]

    def test_a_running_norm_has_the_statistics_of_all_batches(self):
        data = TensorDict({"a": torch.randn(90, 2, dtype=torch.float64) * 3 + 1e6}, [90])
        learning = VecNorm(["a"], decay=1.0)
        for piece in data.split([10, 50, 30]):
            last = learning(piece)
        fitted = VecNorm(["a"]).fit(data)

        torch.testing.assert_close(fitted(data)["a"].mean(0), torch.zeros(2).double(), atol=1e-6, rtol=0)
        torch.testing.assert_close(fitted(data)["a"].std(0, correction=0), torch.ones(2).double())
        torch.testing.assert_close(last["a"], fitted(data[60:])["a"])

    def test_old_batches_have_less_weight(self):
        norm = VecNorm(["a"], decay=0.5)
        norm(TensorDict({"a": torch.zeros(2)}, [2]))
        norm(TensorDict({"a": torch.ones(1)}, [1]))

        # The first batch, 2 steps, has decayed to the weight of 1 step: the mean is 0.5.
        assert norm.to_observation_norm().loc == 0.5

    def test_a_frozen_norm_is_not_updated(self):
        norm = VecNorm(["a"]).fit(TensorDict({"a": torch.tensor([0.0, 2.0])}, [2]))
        norm(TensorDict({"a": torch.full((5,), 9.0)}, [5]))
        plain = norm.to_observation_norm("a")

        assert plain(one(a=3.0))["a"] == norm(one(a=3.0))["a"] == 2
        norm.unfreeze()(TensorDict({"a": torch.full((5,), 9.0)}, [5]))
        assert norm.freeze()(one(a=3.0))["a"] < 2

    def test_a_running_norm_without_data_is_an_error(self):
        with pytest.raises(InvalidArgumentError, match="has no statistics"):
            VecNorm(["a"]).eval()(one(a=3.0))
        with pytest.raises(InvalidArgumentError, match="has no statistics"):
            VecNorm(["a"]).to_observation_norm()
        with pytest.raises(InvalidArgumentError, match="decay is 0"):
            VecNorm(["a"], decay=0)
        with pytest.raises(InvalidArgumentError, match=r'Unexpected key.*"count_1"'):
            VecNorm(["a"]).load_state_dict(VecNorm(["a", "b"]).state_dict())


class TestSpecs:
    """Bounds of the specs of transformed entries."""

    @staticmethod
    def of(transform, **specs):
        return transform.transform_spec(CompositeSpec(specs))

    def test_bytes_have_the_bounds_of_their_dtype(self):
        spec = self.of(ToTensorImage(), pixels=UnboundedDiscreteTensorSpec((4, 4, 3), dtype=torch.uint8))["pixels"]

        assert (spec.low.max(), spec.high.min(), spec.shape) == (0, 1, (3, 4, 4))

    def test_bounds_that_become_nan_are_dropped(self):
        spec = self.of(ObservationNorm(0.0, 0.0, ["a"]), a=BoundedTensorSpec(0, torch.inf, (2,)))["a"]

        assert isinstance(spec, UnboundedContinuousTensorSpec)

    def test_one_hot_specs_that_lose_their_axis_become_unbounded(self):
        spec = self.of(FlattenObservation(-2, -1, ["a"]), a=OneHotDiscreteTensorSpec(3, (2, 3)))["a"]

        assert spec.shape == (6,)
        assert spec.is_in(OneHotDiscreteTensorSpec(3, (2, 3)).rand().flatten())

    def test_stacks_of_any_numbers(self):
        spec = self.of(CatFrames(3, -1, ["a"]), a=UnboundedContinuousTensorSpec((2,)))["a"]

        assert spec.shape == (6,)


class TestOwn:
    """Custom transforms."""

    def test_one_method_is_enough(self):
        class Negative(Transform):
            def transform_value(self, value):
                return -value

        assert Negative(["a"], ["b"])(one(a=1))["b"] == -1
        assert Negative("a").transform_spec(CompositeSpec(a=BoundedTensorSpec(0, 1, (2,))))["a"].shape == (2,)
        with pytest.raises(InvalidArgumentError, match="Negative has no inverse\nremove the argument in_keys_inv"):
            Negative(in_keys_inv=["a"]).inv(one(a=1))

    def test_lists_of_steps_are_written_as_batches(self):
        rb = TensorDictReplayBuffer(
            storage=LazyTensorStorage(2), transform=ObservationNorm(0.0, 2.0, ["a"], in_keys_inv=["a"])
        )
        rb.extend([one(a=2.0), one(a=4.0)])

        assert rb.storage.get(slice(None))["a"].tolist() == [1, 2]


class TestCompose:
    @staticmethod
    def plus(key):
        return UnaryTransform([key], fn=lambda value: value + 1)

    def test_compose_is_a_list(self):
        first, second, third = self.plus("a"), self.plus("a"), torch.clone
        compose = Compose(first, third).insert(1, second).append(first)

        assert list(compose) == [first, second, third, first]
        assert (len(compose), compose[1], list(compose[1:3])) == (4, second, [second, third])
        assert isinstance(compose[:2], Compose)
        assert compose(one(a=1))["a"] == 4

    def test_an_item_that_is_not_callable_is_refused(self):
        with pytest.raises(InvalidArgumentError, match="3 is not callable"):
            Compose(3)
        with pytest.raises(InvalidArgumentError, match="3 is not callable"):
            Compose().append(3)
        with pytest.raises(InvalidArgumentError, match="index is 2, expected 0 to 0"):
            Compose().insert(2, print)

    def test_functions_accept_any_pytree(self):
        rb = ReplayBuffer(
            storage=ListStorage(4), transform=Compose(lambda batch: batch["a"], lambda a: a * 2), batch_size=4
        )
        rb.extend([{"a": torch.tensor(3)}])

        assert rb.sample().tolist() == [6] * 4

    def test_inverses_run_in_reverse_order_and_may_return_none(self):
        class Even:
            def __call__(self, data):
                return data

            def inv(self, data):
                return data if data["b"] % 2 == 0 else None

        compose = Compose(Even(), RenameTransform(["b"], ["a"], ["b"], ["a"]), torch.clone)

        assert compose.inv(one(a=2))["b"] == 2
        assert compose.inv(one(a=3)) is None

    def test_states_have_the_number_of_the_transform(self):
        compose = Compose(torch.clone, ObservationNorm(1.0, 2.0, ["a"]))
        other = Compose(torch.clone, ObservationNorm(in_keys=["a"]))
        other.load_state_dict(compose.state_dict())

        assert other(one(a=1.0))["a"] == 3
        with pytest.raises(InvalidArgumentError, match=r'Unexpected key.*"transforms.1.loc"'):
            Compose().load_state_dict(compose.state_dict())
        with pytest.raises(InvalidArgumentError, match=r'Missing key.*"transforms.1.loc"'):
            other.load_state_dict({})
        with pytest.raises(InvalidArgumentError, match="does not fit"):
            other.load_state_dict({"1": {"loc": "odd", "scale": None}})
        assert other(one(a=1.0))["a"] == 3

    def test_the_spec_of_a_function_is_inferred_from_zeros(self):
        spec = CompositeSpec({"a": UnboundedContinuousTensorSpec((3,)), "b": UnboundedContinuousTensorSpec((3,))})
        made = Compose(lambda batch: batch.exclude("b").set("c", batch["a"][..., :2].long())).transform_spec(spec)

        assert set(made.keys()) == {"a", "c"}
        assert made["c"].shape == (2,)
        assert made["c"].dtype == torch.int64


class TestText:
    def test_a_hash_is_the_same_everywhere(self):
        """The first bytes of SHA-256 of "a", from its standard."""
        made = Hash(["text"], ["hash"])(TensorDict({"text": ["a", "b"]}, [2]))

        assert made["hash"].shape == (2, 32)
        assert made["hash"][0, :4].tolist() == [0xCA, 0x97, 0x81, 0x12]
        assert not torch.equal(Hash(["text"], ["hash"], seed=1)(TensorDict({"text": "a"}, []))["hash"], made["hash"][0])

    def test_text_is_restored_from_its_hash(self):
        transform = Hash(["text"], ["hash"], ["text"], ["hash"])
        data = transform(TensorDict({"text": [["a", "b"], ["c", "a"]]}, [2, 2]))
        other = pickle.loads(pickle.dumps(transform))

        assert other.inv(data.exclude("text"))["text"] == [["a", "b"], ["c", "a"]]
        with pytest.raises(InvalidArgumentError, match="none of the 0 texts of the repertoire"):
            Hash([], [], ["text"], ["hash"]).inv(data.exclude("text"))

    def test_hashes_by_a_function(self):
        transform = Hash(["text"], ["length"], hash_fn=len, repertoire={7: "seven"})
        data = transform(TensorDict({"text": ["abc", "a"]}, [2]))

        assert data["length"].tolist() == [3, 1]
        assert repr(transform) == "Hash(keys=['text'] to ['length'])"
        assert repr(Hash(["a"], seed=3, out_keys=["b"])) == "Hash(seed=3, keys=['a'] to ['b'])"
        assert transform.repertoire == {7: "seven", 3: "abc", 1: "a"}

    def test_tokens_are_padded_and_marked(self):
        transform = Tokenizer(["text"], [("in", "tokens")], tokenizer=lambda text: [ord(one) for one in text])
        made = transform(TensorDict({"text": ["abc", "a"]}, [2]))

        assert made["in", "tokens"].tolist() == [[97, 98, 99], [97, 0, 0]]
        assert made["in", "attention_mask"].tolist() == [[True] * 3, [True, False, False]]

    def test_tokens_of_a_given_length(self):
        transform = Tokenizer(
            ["text"], ["tokens"], tokenizer=lambda text: torch.arange(len(text)), max_length=2, padding=9
        )
        spec = CompositeSpec({"text": NonTensorSpec((2,)), "a": None}, shape=(2,))
        made = transform(TensorDict({"text": ["abc", "a"]}, [2]))

        assert made["tokens"].tolist() == [[0, 1], [0, 9]]
        assert repr(transform) == "Tokenizer(max_length=2, keys=['text'] to ['tokens'])"
        assert transform.transform_spec(spec)["tokens"].shape == (2, 2)
        assert transform.transform_spec(spec)["attention_mask"].is_in(made["attention_mask"])
        with pytest.raises(InvalidArgumentError, match="depends on its texts"):
            Tokenizer(["text"], ["tokens"], tokenizer=len).transform_spec(spec)

    def test_objects_that_encode_and_decode(self):
        class Words:
            """Like `tokenizers`, which returns ids as an attribute of an object."""

            def encode(self, text, *, add_special_tokens):
                ids = [len(word) for word in text.split()]
                return type("Encoding", (), {"ids": [1, *ids] if add_special_tokens else ids})()

            def decode(self, ids, *, skip_special_tokens):
                return " ".join("x" * size for size in ids if not (skip_special_tokens and size == 1))

        transform = Tokenizer(
            ["text"],
            ["tokens"],
            ["text"],
            ["tokens"],
            tokenizer=Words(),
            add_special_tokens=True,
            return_attention_mask=False,
        )
        made = transform(TensorDict({"text": ["go on", "stop"]}, [2]))

        assert made["tokens"].tolist() == [[1, 2, 2], [1, 4, 0]]
        assert transform.inv(made.exclude("text"))["text"] == ["xx xx", "xxxx"]
        assert set(made.keys()) == {"text", "tokens"}
        with pytest.raises(InvalidArgumentError, match="tokenizer is 3"):
            Tokenizer(["text"], tokenizer=3)
        with pytest.raises(InvalidArgumentError, match="tokenizer is None, expected a callable") as caught:
            Tokenizer(["text"])
        assert "tokenizer=AutoTokenizer.from_pretrained" in caught.value.hint

    def test_any_function_of_text(self):
        made = UnaryTransform(["text"], ["loud"], fn=str.upper)(TensorDict({"text": ["a", "b"]}, [2]))

        assert made["loud"] == ["A", "B"]
        with pytest.raises(InvalidArgumentError, match="inv_fn is missing"):
            UnaryTransform(["text"], None, ["text"], fn=str.upper)


class TestPieces:
    def test_subsequences_start_at_any_possible_step(self):
        data = TensorDict({"a": torch.arange(20).reshape(4, 5)}, [4, 5])
        torch.manual_seed(0)
        made = torch.cat([RandomCropTensorDict(3)(data)["a"] for _ in range(50)])

        assert made.shape == (200, 3)
        assert ((made[:, 1:] - made[:, :-1]) == 1).all()
        assert {start % 5 for start in made[:, 0].tolist()} == {0, 1, 2}

    def test_subsequences_stay_within_the_mask(self):
        mask = torch.tensor([[True, True, True, False], [True, True, True, True]])
        data = TensorDict({"a": torch.arange(8).reshape(2, 4), "mask": mask}, [2, 4])
        made = [RandomCropTensorDict(3, mask_key="mask")(data) for _ in range(20)]

        assert all(one["mask"].all() for one in made)
        assert {one["a"][1, 0].item() for one in made} == {4, 5}

    def test_any_axis_may_be_time(self):
        data = TensorDict({"a": torch.arange(10).reshape(5, 2)}, [5, 2])
        made = RandomCropTensorDict(4, sample_dim=0)(data)["a"]

        assert all((after == before + 2).all() for before, after in pairwise(made))

    def test_trajectories_that_are_too_short_are_refused(self):
        data = TensorDict({"a": torch.zeros(2, 3)}, [2, 3])

        with pytest.raises(
            InvalidArgumentError, match="a trajectory of the batch has 3 steps, expected at least sub_seq_len = 4"
        ):
            RandomCropTensorDict(4)(data)
        with pytest.raises(InvalidArgumentError, match="sample_dim is 2, expected an axis of the batch size"):
            RandomCropTensorDict(1, sample_dim=2)(data)
        with pytest.raises(InvalidArgumentError, match="sub_seq_len is 0"):
            RandomCropTensorDict(0)

    def test_the_first_steps_initialize_the_state_of_a_network(self):
        class Sum(nn.Module):
            """A recurrent network whose state is the sum of its inputs."""

            out_keys = ("seen", ("next", "state"))

            def forward(self, batch):
                return batch.set(("next", "state"), batch["x"].cumsum(1))

        data = TensorDict({"x": torch.ones(2, 5, 1), "next": {"y": torch.ones(2, 5)}}, [2, 5])
        transform = BurnInTransform(Sum(), 3)
        made = transform(data)

        assert repr(transform) == "BurnInTransform(burn_in=3, keys=['state'])"
        assert made.shape == (2, 2)
        assert made["state"].squeeze(-1).tolist() == [[3, 0]] * 2
        assert keys(data["next"]) == {"y"}
        with pytest.raises(InvalidArgumentError, match=r"expected .* with T > 5"):
            BurnInTransform([], 5)(data)
        with pytest.raises(InvalidArgumentError, match="burn_in is -1"):
            BurnInTransform([], -1)
        with pytest.raises(InvalidArgumentError, match="unknown"):
            transform.transform_spec(CompositeSpec())

    def test_context_and_rest_without_a_network(self):
        data = TensorDict({"x": torch.arange(10).reshape(2, 5)}, [2, 5])
        made = BurnInTransform([], 2, context_key="context")(data)

        assert made.shape == (2,)
        assert made["x"].tolist() == [[2, 3, 4], [7, 8, 9]]
        assert made["context"].shape == (2, 2)
        assert made["context", "x"].tolist() == [[0, 1], [5, 6]]

    def test_a_state_that_was_stored_is_overwritten_at_the_first_step_only(self):
        def module(batch):
            return batch.set(("next", "h"), batch["x"] * 10)

        data = TensorDict({"x": torch.arange(4.0).reshape(1, 4), "h": torch.full((1, 4), 7.0)}, [1, 4])
        made = BurnInTransform([module], 2, ["h"])(data)

        assert made["h"].tolist() == [[10, 7]]
        assert data["h"].tolist() == [[7, 7, 7, 7]]


class TestTrajectories:
    @pytest.fixture
    def flat(self):
        done = torch.tensor([0, 0, 1, 0, 1], dtype=torch.bool).unsqueeze(1)
        return TensorDict({"x": torch.arange(1, 6), "next": {"done": done}}, [5])

    def test_by_flags(self, flat):
        made = split_trajectories(flat)

        assert made.shape == (2, 3)
        assert made["x"].tolist() == [[1, 2, 3], [4, 5, 0]]
        assert made["mask"].tolist() == [[True] * 3, [True, True, False]]
        assert made["traj_ids"].tolist() == [[0, 0, 0], [1, 1, 0]]

    def test_by_numbers(self, flat):
        numbered = flat.exclude("next").set("episode", torch.tensor([4, 4, 9, 9, 9]))

        assert split_trajectories(numbered)["x"].tolist() == [[1, 2, 0], [3, 4, 5]]
        named = numbered.rename_key_("episode", "run")
        assert split_trajectories(named, trajectory_key="run")["x"].tolist() == [[1, 2, 0], [3, 4, 5]]

    def test_rows_of_a_batch_are_separate_trajectories(self, flat):
        assert split_trajectories(torch.stack([flat[:2], flat[3:]]))["x"].tolist() == [[1, 2], [4, 5]]

    def test_without_flags_or_numbers_it_is_an_error(self, flat):
        with pytest.raises(InvalidArgumentError, match="nor a flag at the end of trajectories"):
            split_trajectories(flat.select("x"))
        with pytest.raises(UnknownKeyError, match=r"next\.over"):
            split_trajectories(flat, done_key="over")
        with pytest.raises(UnknownKeyError, match="run"):
            split_trajectories(flat, trajectory_key="run")

    def test_the_next_step(self):
        data = TensorDict(
            {
                "x": torch.zeros(2),
                "action": torch.zeros(2),
                "kept": torch.zeros(2),
                "next": {"x": torch.ones(2), "reward": torch.ones(2), "done": torch.ones(2)},
            },
            [2],
        )

        assert keys(step_mdp(data)) == {"x", "kept", "done"}
        assert step_mdp(data)["x"].tolist() == [1, 1]
        assert keys(step_mdp(data, keep_other=False, exclude_done=True)) == {"x"}
        assert keys(step_mdp(data, exclude_reward=False, exclude_action=False)) == {
            "x",
            "kept",
            "done",
            "reward",
            "action",
        }
        target = TensorDict({"more": torch.zeros(2)}, [2])
        assert step_mdp(data, target) is target
        assert keys(target) == {"more", "x", "kept", "done"}
        with pytest.raises(UnknownKeyError, match="no key 'next'"):
            step_mdp(target)
