"""The texts, rollouts and KL controllers of TorchRL for the same arguments; requires TorchRL."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch

from datasets_rl import rlhf

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torchrl = pytest.importorskip("torchrl.data.llm", reason="pip install --no-deps torchrl hoptorch")
    rewards = pytest.importorskip("torchrl.data.llm.reward")

EOS = 0
NAMES = sorted({*rlhf.__all__} - {"KLControllerBase", "pre_tokenization_hook"})
PAIRS = [
    {"prompt": "one", "chosen": "a b c d e", "rejected": "a b c d f"},
    {"prompt": "two", "chosen": "a b c d e", "rejected": "a b c d e"},
    {"prompt": "three", "chosen": "a b", "rejected": "a b c d e"},
]


class Letters:
    """A tokenizer of letters with the arguments and results of transformers."""

    eos_token_id = EOS

    def __call__(self, texts, max_length, padding=False, truncation=True):
        """Return the codes of the letters, padded and cut."""
        rows = [[ord(letter) for letter in text][: max_length if truncation else None] for text in texts]
        width = max_length if padding == "max_length" else 0
        return {
            "input_ids": [row + [EOS] * (width - len(row)) for row in rows],
            "attention_mask": [[1] * len(row) + [0] * (width - len(row)) for row in rows],
        }


def parameters(function):
    return {name: (one.kind, one.default) for name, one in inspect.signature(function).parameters.items()}


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_the_same_or_come_after_those_of_torchrl(name):
    ours, theirs = (getattr(module, name) for module in (rlhf, torchrl))
    for method in (None, "from_dataset", "mask_label", "generate", "create_rollout_td", "dataset_to_tensordict"):
        if method is None or hasattr(theirs, method):
            first, second = (parameters(getattr(one, method) if method else one) for one in (ours, theirs))
            shared = {key: value for key, value in first.items() if key in second}
            # `data_dir` and the like are required in both; a missing default is the only other difference.
            assert shared == second, method
            assert list(first)[: len(second)] == list(second), method


@pytest.mark.parametrize("max_length", [6, 40])
def test_tokens_are_the_same(max_length):
    example = {"text": ["a cat", "a dog and a cat"], "prompt": ["a cat", "a dog"], "label": [" sat", " and a cat sat"]}
    for name in ("TensorDictTokenizer", "PromptTensorDictTokenizer"):
        ours, theirs = (getattr(module, name)(Letters(), max_length)(example) for module in (rlhf, torchrl))
        assert (ours == theirs).all()
        # That of TorchRL's prompts is [], against its documentation.
        assert ours.batch_size == (2,)


def test_pairs_are_selected_in_the_same_way():
    from datasets import Dataset

    data = Dataset.from_list(PAIRS)
    ours, theirs = (hook(data) for hook in (rlhf.pre_tokenization_hook, rewards.pre_tokenization_hook))

    assert ours.to_list() == theirs.to_list()


@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning")
def test_controllers_are_the_same():
    ours, theirs = (module.AdaptiveKLController(init_kl_coef=0.4, target=3.0, horizon=20) for module in (rlhf, torchrl))
    for values in ([-1.0], [-1.2, -0.9, -1.0], [-3.0] * 5, [0.1]):
        assert ours.update(values) == pytest.approx(float(theirs.update(values)), rel=1e-6)


@pytest.fixture(scope="module")
def rollouts():
    """Return an object of each package over the same models, and prompts."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = GPT2Config(
        vocab_size=40, n_positions=64, n_embd=16, n_layer=2, n_head=2, eos_token_id=EOS, bos_token_id=EOS
    )
    models = [GPT2LMHeadModel(config).eval() for _ in range(2)]

    def scored(input_ids, attention_mask):
        return input_ids.float(), (input_ids * attention_mask).float().sum(-1) / 50

    both = [module.RolloutFromModel(*models, scored, max_new_tokens=6) for module in (rlhf, torchrl)]
    both[1].EOS_TOKEN_ID = EOS
    ids = torch.randint(1, 40, (5, 10))
    fields = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "prompt_rindex": torch.arange(5) + 2}
    return [
        (one, module.PromptData(**fields, batch_size=[5])) for one, module in zip(both, (rlhf, torchrl), strict=True)
    ]


def generated_with_ends(batch, *, ends):
    """Return tokens after the prompts [B, L + 6]; with `ends`, some texts end early."""
    torch.manual_seed(3)
    generated = torch.full((5, 16), EOS)
    for row in range(5):
        count = (6, 2, 6, 4, 0)[row] if ends else 6
        start = int(batch.prompt_rindex[row])
        generated[row, :start] = batch.input_ids[row, :start]
        generated[row, start : start + count] = torch.randint(1, 40, (count,))
    return generated


def test_masked_labels_and_log_ratios_are_the_same(rollouts):
    (ours, batch), (theirs, same) = rollouts
    for name in ("input_ids", "attention_mask", "prompt_rindex"):
        assert (getattr(batch.mask_label(EOS), name) == getattr(same.mask_label(EOS), name)).all()
    for ends in (False, True):
        generated = generated_with_ends(batch, ends=ends)
        first, second = (one._log_ratio(generated, batch.prompt_rindex) for one in (ours, theirs))
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-4)


def test_rollouts_of_texts_that_do_not_end_are_the_same(rollouts):
    found = []
    for one, batch in rollouts:
        generated = generated_with_ends(batch, ends=False)
        ratio = torch.linspace(-1, 1, 30).reshape(5, 6)
        found.append(one.create_rollout_td(batch, generated, ratio.unsqueeze(-1), ratio))

    assert set(found[0].keys(True, True)) == set(found[1].keys(True, True))
    assert (found[0] == found[1]).all()
    assert found[0].names == found[1].names


def test_a_text_that_ends_early_is_rewarded_once(rollouts):
    """TorchRL rewards it a second time at the last step, because `done` is True there, too."""
    ours, theirs = (
        one.create_rollout_td(batch, generated_with_ends(batch, ends=True), torch.zeros(5, 6, 1), torch.zeros(5, 6))
        for one, batch in rollouts
    )

    for key in set(ours.keys(True, True)) - {("next", "reward"), ("next", "reward_raw")}:
        assert (ours[key] == theirs[key]).all(), key
    assert ours["next", "reward_raw"].ne(0).sum(1).flatten().tolist() == [1, 1, 1, 1, 1]
    assert theirs["next", "reward_raw"].ne(0).sum(1).flatten().tolist() == [1, 2, 1, 2, 2]
    first = theirs["next", "done"].cumsum(1) * theirs["next", "done"] == 1
    assert (ours["next", "reward_raw"] == theirs["next", "reward_raw"] * first).all()


def test_tokens_are_sampled_from_the_whole_vocabulary(rollouts):
    """TorchRL uses the default of transformers: one of the 50 most likely tokens, with its probability among these."""
    (ours, batch), _ = rollouts
    generated, log_probs, _ = ours.generate(batch)
    row, start = 4, int(batch.prompt_rindex[4])
    with torch.no_grad():
        logits = ours.model(generated[row : row + 1, :start]).logits[0, -1]

    assert log_probs[row, 0].item() == pytest.approx(logits.log_softmax(-1)[generated[row, start]].item(), abs=1e-5)
