"""Action tokens, the layout of batches and metadata; expected values are those of OpenVLA and of TorchRL 0.14.1."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict

import datasets_rl as rl
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.vla import (
    RobotDatasetMetadata,
    UniformActionTokenizer,
    VocabTailActionTokenizer,
    lerobot_columns_to_tensordict,
    validate_vla_tensordict,
)


class TestUniformTokens:
    def test_a_token_is_the_number_of_a_bin(self):
        tokenizer = UniformActionTokenizer(256, low=-1.0, high=1.0)

        assert tokenizer.encode(torch.tensor([-1.0, 0.0, 1.0, -9.0, 9.0])).tolist() == [0, 128, 255, 0, 255]
        assert tokenizer.vocab_size == 256
        assert tokenizer.action_dim is None

    def test_a_round_trip_errs_by_half_a_bin(self):
        low, high = torch.tensor([-1.0, 0.0, -5.0]), torch.tensor([1.0, 2.0, 5.0])
        tokenizer = UniformActionTokenizer(32, low=low, high=high)
        actions = low + torch.rand(2, 4, 5, 3) * (high - low)
        tokens = tokenizer.encode(actions)

        assert tokens.dtype == torch.int64
        assert tokens.shape == actions.shape
        assert ((tokenizer.decode(tokens) - actions).abs() <= (high - low) / 64 + 1e-5).all()

    def test_bounds_come_from_metadata(self):
        metadata = RobotDatasetMetadata("bridge", action_low=[-1.0, -2.0], action_high=[1.0, 2.0])

        assert UniformActionTokenizer.from_metadata(metadata, 8).action_dim == 2
        assert UniformActionTokenizer(8, low=-1, high=1, action_dim=7).action_dim == 7
        with pytest.raises(InvalidArgumentError, match="no action bounds"):
            UniformActionTokenizer.from_metadata(RobotDatasetMetadata("bridge"), 8)

    @pytest.mark.parametrize(
        ("bins", "low", "high", "message"),
        [(0, -1, 1, "num_bins is 0"), (4, 1, 1, "strictly greater"), (4, [0, 0], [1, 1, 1], "the same shape")],
    )
    def test_impossible_bins_are_refused(self, bins, low, high, message):
        with pytest.raises(InvalidArgumentError, match=message):
            UniformActionTokenizer(bins, low=low, high=high)


class TestTokensAtTheEndOfAVocabulary:
    def test_tokens_are_those_of_openvla(self):
        """The formulas of prismatic/vla/action_tokenizer.py."""
        tokenizer = VocabTailActionTokenizer(256, full_vocab_size=32000)
        actions, bins = torch.linspace(-1.3, 1.3, 1001), tokenizer.bins.numpy()
        tokens = 32000 - np.digitize(np.clip(actions.numpy(), -1.0, 1.0), bins)
        centers = (bins[:-1] + bins[1:]) / 2
        decoded = centers[np.clip(32000 - tokens - 1, 0, 254)]

        assert tokenizer.encode(actions).tolist() == tokens.tolist()
        torch.testing.assert_close(tokenizer.decode(torch.from_numpy(tokens)), torch.from_numpy(decoded))
        assert tokenizer.vocab_size == 32000

    def test_tokens_count_from_the_first_one_for_actions(self):
        window, full = VocabTailActionTokenizer(16), VocabTailActionTokenizer(16, full_vocab_size=100)
        actions = torch.rand(2, 3, 7) * 2 - 1

        assert torch.equal(full.encode(actions), window.encode(actions) + 84)
        assert torch.equal(full.decode(full.encode(actions)), window.decode(window.encode(actions)))
        assert VocabTailActionTokenizer(256).encode(torch.tensor([-1.0, 0.0, 1.0])).tolist() == [255, 128, 0]

    def test_statistics_are_applied_as_in_openvla(self):
        low, high = [-0.7454732114076613, -0.6616071462631226], [0.9375, 0.8758928775787354]
        tokenizer = VocabTailActionTokenizer(256, full_vocab_size=32064, norm_low=low, norm_high=high)
        tokens = torch.tensor([[32063, 31936], [31808, 32000]])
        bins = np.linspace(-1.0, 1.0, 256)
        normalized = ((bins[:-1] + bins[1:]) / 2)[np.clip(32064 - tokens.numpy() - 1, 0, 254)]
        expected = 0.5 * (normalized + 1.0) * (np.array(high) - np.array(low) + 1e-8) + np.array(low)

        np.testing.assert_array_equal(tokenizer.decode(tokens).numpy(), expected.astype(np.float32))
        inner = tokens[0]
        assert torch.equal(tokenizer.encode(tokenizer.decode(inner)), inner)

    def test_the_gripper_has_no_statistics(self):
        stats = {"bridge": {"action": {"q01": [-0.5] * 2, "q99": [0.5] * 2, "mask": [True, False]}}}
        plain = VocabTailActionTokenizer.from_norm_stats(stats, "bridge")
        binary = VocabTailActionTokenizer.from_norm_stats(
            stats, "bridge", gripper_binarize=True, gripper_invert=True, full_vocab_size=1000
        )
        actions = torch.tensor([[0.25, -0.25], [-0.5, 0.25]])

        assert torch.allclose(plain.decode(plain.encode(actions)), actions, atol=1 / 255)
        assert binary.decode(binary.encode(actions))[:, 1].tolist() == [1.0, -1.0]
        with pytest.raises(KeyError, match="unnorm_key"):
            VocabTailActionTokenizer.from_norm_stats(stats, "other")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"num_bins": 1}, "num_bins is 1"),
            ({"full_vocab_size": 128}, "full_vocab_size is 128"),
            ({"norm_low": [0.0]}, "expected both"),
        ],
    )
    def test_impossible_vocabularies_are_refused(self, options, message):
        with pytest.raises(InvalidArgumentError, match=message):
            VocabTailActionTokenizer(**options)

    def test_its_parameters_are_saved_as_a_module(self):
        tokenizer = VocabTailActionTokenizer(16, norm_low=[0.0], norm_high=[1.0])

        assert set(tokenizer.state_dict()) == {"bins", "bin_centers", "norm_low", "norm_high", "norm_mask"}


def batch(**changes):
    """Return a batch of two steps in the layout."""
    entries = {
        "observation": {"image": torch.zeros(2, 3, 8, 8, dtype=torch.uint8)},
        "language_instruction": NonTensorData("pick up the red block"),
        "action": torch.zeros(2, 7),
        **changes,
    }
    return TensorDict({key: value for key, value in entries.items() if value is not None}, [2])


class TestLayout:
    def test_a_complete_batch_has_no_problems(self):
        assert validate_vla_tensordict(batch()) == []
        assert validate_vla_tensordict(batch(language_instruction=None), require_instruction=False) == []

    @pytest.mark.parametrize(
        ("changes", "options", "problem"),
        [
            ({"language_instruction": None}, {}, "missing language instruction at 'language_instruction'"),
            ({"language_instruction": NonTensorData(" ")}, {}, "empty language instruction"),
            ({"observation": {}}, {}, "no perception"),
            ({"action": None}, {}, "missing action at 'action'"),
            ({}, {"action_key": ("action", "inner")}, "missing action at"),
            (
                {"action": torch.tensor([[0.0], [float("nan")]])},
                {},
                r"non-finite values in action .* first at \[1, 0\]",
            ),
        ],
    )
    def test_each_problem_is_named(self, changes, options, problem):
        problems = validate_vla_tensordict(batch(**changes), raise_on_error=False, **options)

        assert len(problems) == 1
        with pytest.raises(InvalidArgumentError, match=f"VLA schema: {problem}"):
            validate_vla_tensordict(batch(**changes), **options)


class TestMetadata:
    def test_json_keeps_every_field(self, tmp_path):
        metadata = RobotDatasetMetadata(
            "bridge",
            action_dim=2,
            action_names=("x", "grip"),
            action_space="eef_delta",
            gripper_mode="binary",
            control_frequency_hz=5.0,
            camera_keys=(("observation", "image", "wrist"), "front"),
            action_mean=torch.tensor([0.1, 0.2]),
        )
        metadata.to_json(tmp_path / "metadata.json")
        again = RobotDatasetMetadata.from_json(tmp_path / "metadata.json")

        assert (again == metadata).all()
        assert again.camera_keys == metadata.camera_keys
        assert again.action_names == metadata.action_names
        again.action_mean = torch.tensor([0.1, 0.3])
        assert not (again == metadata).all()
        newer = json.dumps({**json.loads(metadata.to_json()), "later": 1})
        assert (RobotDatasetMetadata.from_json(newer) == metadata).all()

    def test_the_spec_of_an_action_has_the_bounds(self):
        bounded = RobotDatasetMetadata("d", action_dim=2, action_low=[-1.0, 0.0], action_high=[1.0, 2.0])
        spec = bounded.make_action_spec(shape_prefix=(4,))

        assert spec == rl.Bounded([-1.0, 0.0], [1.0, 2.0], (4, 2))
        assert RobotDatasetMetadata("d", action_dim=2).make_action_spec() == rl.Unbounded((2,))
        with pytest.raises(InvalidArgumentError, match="action_dim must be set"):
            RobotDatasetMetadata("d").make_action_spec()

    def test_it_is_a_tensorclass(self):
        metadata = RobotDatasetMetadata("d", action_mean=[0.0, 1.0])

        assert metadata.batch_size == ()
        assert metadata.to("cpu").action_mean.tolist() == [0.0, 1.0]

    @pytest.mark.parametrize(
        "fields", [{"action_space": "arms"}, {"gripper_mode": "odd"}, {"action_dim": 0}, {"action_dim": 7.0}], ids=str
    )
    def test_invalid_fields_are_refused(self, fields):
        with pytest.raises(InvalidArgumentError, match=f"{next(iter(fields))} is"):
            RobotDatasetMetadata("d", **fields)

    @pytest.mark.parametrize("text", ["{", "{}"])
    def test_other_documents_are_refused(self, text):
        with pytest.raises(InvalidArgumentError, match="the metadata"):
            RobotDatasetMetadata.from_json(text)


class TestLeRobotColumns:
    def test_columns_get_nested_keys(self):
        steps = lerobot_columns_to_tensordict(
            {
                "observation.state": torch.zeros(4, 7),
                "observation.images.top": torch.zeros(4, 3, 8, 8, dtype=torch.uint8),
                "action": np.zeros((4, 7), np.float32),
                "next.reward": [0.0, 1.0, 2.0, 3.0],
                "episode_index": torch.tensor([0, 0, 1, 1]),
                "task": ["pick", "pick", "place", "place"],
                "gripper.open": [True] * 4,
            },
            key_map={"gripper.open": "open"},
        )

        assert validate_vla_tensordict(steps) == []
        assert steps.batch_size == (4,)
        assert steps["observation", "image", "top"].shape == (4, 3, 8, 8)
        assert steps["next", "reward"].shape == (4, 1)
        assert steps.get("language_instruction").tolist() == ["pick", "pick", "place", "place"]
        assert steps["episode"].tolist() == [0, 0, 1, 1]
        assert steps["open"].all()

    @pytest.mark.parametrize(
        "columns", [{}, {"action": torch.zeros(3), "frame_index": [0, 1]}], ids=["none", "lengths"]
    )
    def test_unequal_columns_are_refused(self, columns):
        with pytest.raises(InvalidArgumentError, match="the same number of frames"):
            lerobot_columns_to_tensordict(columns)

    def test_texts_and_numbers_do_not_mix(self):
        with pytest.raises(InvalidArgumentError, match="'task' has texts and other values"):
            lerobot_columns_to_tensordict({"task": ["pick", 3]})
