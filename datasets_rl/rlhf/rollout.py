"""Rollouts of language models: tokens are generated from prompts, and rewarded."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.libraries import importing
from datasets_rl.rlhf.kl import KLControllerBase
from datasets_rl.rlhf.prompt import PromptData


class RolloutFromModel:
    """Rollouts of a causal language model as batches of transitions: each generated token is an action.

        prompt_rindex r = 2, L = 4, max_new_tokens T = 3, eos after the second token

        batch.input_ids        p_0  p_1  p_2  l_0
        generated              p_0  p_1  a_0  eos  eos  eos  eos             [L + T]
        input_ids, step 0      p_0  p_1  eos  eos  eos  eos  eos
        input_ids, step 1      p_0  p_1  a_0  eos  eos  eos  eos             next.input_ids of step 0

        step                    0      1      2
        action                 a_0    eos    eos      the last eos is padding
        sample_log_prob         x      x      0
        next.done               -      x      x       step 2 ends the padding
        next.terminated         -      x      -
        next.reward_raw         0      x      0

    Args:
        model: The causal language model of transformers that generates.
        ref_model: A frozen model. The KL divergence from this model is subtracted from the reward.
        reward_model: A module that returns rewards [B, L] and end scores [B] for the arguments `input_ids` and
            `attention_mask`. The reward of a rollout is the end score of the generated text minus that of the labels.
        kl_coef: Coefficient of the KL term.
        max_new_tokens: Number of tokens to generate at most, T.
        score_clip: Rewards are clipped to [-score_clip, score_clip] before the KL term is added.
        kl_scheduler: Controller of the coefficient, for `step_scheduler`.
        num_steps: Number of rollouts that an update of the coefficient considers. By default all since the last update.
        eos_token_id: Id of the end-of-sequence token, which is also the padding. By default the id in the configuration
            of the model, else `EOS_TOKEN_ID`.

    Raises:
        MissingDependencyError: If transformers is not installed.
        InvalidArgumentError: If the model has several end-of-sequence tokens, and `eos_token_id` is not given.
    """

    EOS_TOKEN_ID = 50256
    """Id of the end-of-sequence token: that of gpt2."""

    def __init__(
        self,
        model: Any,
        ref_model: Any,
        reward_model: Any,
        kl_coef: float = 0.1,
        max_new_tokens: int = 50,
        score_clip: float = 10.0,
        kl_scheduler: KLControllerBase | None = None,
        num_steps: int | None = None,
        *,
        eos_token_id: int | None = None,
    ) -> None:
        with importing("transformers", "rlhf", "a rollout of a language model"):
            from transformers import GenerationConfig
        if eos_token_id is None:
            eos_token_id = getattr(getattr(model, "config", None), "eos_token_id", None)
        if eos_token_id is not None:
            if not isinstance(eos_token_id, int):
                raise InvalidArgumentError(
                    f"the end-of-sequence token of the model is {eos_token_id!r}, expected a single integer",
                    hint="pass a single id to the constructor",
                )
            self.EOS_TOKEN_ID = eos_token_id
        self.model = model
        self.ref_model = ref_model
        self.reward_model = reward_model
        self.max_new_tokens = max_new_tokens
        self.score_clip = score_clip
        self.kl_coef = kl_coef
        self.kl_scheduler = kl_scheduler
        self._kl_queue: deque[Tensor] = deque(maxlen=num_steps)
        # Without top_k=0, transformers samples from the 50 most likely tokens only.
        self._sampling = GenerationConfig(do_sample=True, top_k=0, top_p=1.0, temperature=1.0)

    def rollout_from_data(self, batch: PromptData) -> TensorDict:
        """Generate tokens from prompts and reward them, see `create_rollout_td`."""
        return self.create_rollout_td(batch, *self.generate(batch))

    @torch.no_grad()
    def generate(self, batch: PromptData, generation_config: Any = None) -> tuple[Tensor, Tensor, Tensor]:
        """Generate tokens from prompts.

        Args:
            batch: Prompts and labels [B], with sequences of L tokens.
            generation_config: A GenerationConfig of transformers. By default, tokens are sampled from the model. The
                number of tokens, the end-of-sequence token and the padding are set by this object.

        Returns:
            * The prompts, the generated tokens after each prompt, then padding, int64 [B, L + T].
            * The log-probability of each generated token in the distribution that was sampled, [B, T, 1].
            * The logarithm of the ratio of its probabilities in the model and in the reference model, [B, T].

            Both are 0 for the padding after an end-of-sequence token.

        Raises:
            InvalidArgumentError: If a prompt has no token before its `prompt_rindex`.
        """
        prompt_length = batch.prompt_rindex
        longest = int(prompt_length.max())
        if int(prompt_length.min()) < 1:
            raise InvalidArgumentError(
                f"row {int(prompt_length.argmin())} has no token before its prompt_rindex, which is the index of the "
                "last token of the prompt, expected prompts of at least two tokens",
                hint="leave out shorter prompts",
            )
        # Models of transformers generate after the last column, so the padding is on the left.
        columns = torch.arange(longest, device=prompt_length.device) - (longest - prompt_length[:, None])
        mask = columns >= 0
        prompts = batch.input_ids.gather(1, columns.clamp(min=0)).where(mask, self.EOS_TOKEN_ID)
        outputs = self.model.generate(
            input_ids=prompts, attention_mask=mask.to(torch.int64), generation_config=self._config(generation_config)
        )
        actions = outputs.sequences[:, longest:]
        taken = self._before_end(actions)
        actions = actions.where(taken, self.EOS_TOKEN_ID)
        steps = zip(outputs.scores, actions.unbind(1), strict=True)
        log_probs = torch.stack([self.logprobs_of_labels(scores, tokens) for scores, tokens in steps], 1)
        missing = self.max_new_tokens - actions.shape[1]
        log_probs = torch.nn.functional.pad(log_probs.where(taken, 0.0), (0, missing)).unsqueeze(-1)
        actions = torch.nn.functional.pad(actions, (0, missing), value=self.EOS_TOKEN_ID)
        generated = self._after_prompts(batch, actions)
        return generated, log_probs, self._log_ratio(generated, prompt_length)

    def _config(self, config: Any) -> Any:
        config = copy.deepcopy(self._sampling if config is None else config)
        config.max_new_tokens = self.max_new_tokens
        config.eos_token_id = config.pad_token_id = self.EOS_TOKEN_ID
        config.return_dict_in_generate = config.output_scores = True
        return config

    def _before_end(self, actions: Tensor) -> Tensor:
        """Return which tokens [B, T] are not after an end-of-sequence token.

        The first end-of-sequence token itself is not.
        """
        ends = (actions == self.EOS_TOKEN_ID).to(torch.int64)
        return (ends.cumsum(1) - ends) == 0

    def _after_prompts(self, batch: PromptData, actions: Tensor) -> Tensor:
        """Return the prompts [B, L] with the actions [B, T] after the prompts, then padding, [B, L + T]."""
        length = batch.prompt_rindex[:, None]
        columns = torch.arange(batch.input_ids.shape[1], device=length.device)
        prompts = batch.input_ids.where(columns < length, self.EOS_TOKEN_ID)
        generated = torch.nn.functional.pad(prompts, (0, actions.shape[1]), value=self.EOS_TOKEN_ID)
        return generated.scatter(1, self._action_columns(batch.prompt_rindex), actions)

    def _action_columns(self, prompt_rindex: Tensor) -> Tensor:
        """Return the columns of the generated tokens, [B, T]."""
        return prompt_rindex[:, None] + torch.arange(self.max_new_tokens, device=prompt_rindex.device)

    @staticmethod
    def logprobs_of_labels(logits: Tensor, labels: Tensor) -> Tensor:
        """Return the log-probability of each label, [*].

        Args:
            logits: Unnormalized log-probabilities, [*, vocabulary].
            labels: Token ids, int64 [*].
        """
        return logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)

    @torch.no_grad()
    def _log_ratio(self, generated: Tensor, prompt_rindex: Tensor) -> Tensor:
        """Return log p(token) - log p_ref(token) of the generated tokens, [B, T].

        tokens     p_0  p_1  a_0  a_1
        logits      .    x    x    .        logits of column c are for the token of column c + 1
        """
        columns = self._action_columns(prompt_rindex)
        actions = generated.gather(1, columns)
        used = generated[:, : int(prompt_rindex.max()) + self.max_new_tokens]
        mask = torch.arange(used.shape[1], device=used.device) < prompt_rindex[:, None]
        taken = self._before_end(actions)
        mask = torch.nn.functional.pad(mask, (0, generated.shape[1] - used.shape[1])).scatter(1, columns, taken)
        mask = mask[:, : used.shape[1]].to(torch.int64)

        def log_probs(model: Any) -> Tensor:
            device = getattr(model, "device", used.device)
            logits = model(input_ids=used.to(device), attention_mask=mask.to(device), return_dict=True).logits
            rows = torch.arange(len(used), device=logits.device)[:, None]
            return self.logprobs_of_labels(logits[rows, columns.to(logits.device) - 1], actions.to(logits.device))

        ratio = log_probs(self.model)
        return (ratio - log_probs(self.ref_model).to(ratio.device)).where(taken, 0.0)

    @torch.no_grad()
    def create_rollout_td(
        self, batch: PromptData, generated: Tensor, log_probs: Tensor, log_ratio: Tensor
    ) -> TensorDict:
        """Return rollouts as transitions, in the structure of an environment that appends a token per step.

        Args:
            batch: The prompts and labels [B].
            generated: See `generate`, as the other arguments.
            log_probs: Log-probabilities of the generated tokens.
            log_ratio: Log-ratio of the probabilities in the two models.

        Returns:
            A TensorDict [B, T] with the last axis named "time":

            * ``action``, int64 [B, T]: the generated tokens.
            * ``input_ids``, int64 [B, T, L + T], and ``attention_mask``, bool: the text before each action.
            * ``sample_log_prob``, [B, T, 1].
            * ``("next", "input_ids")``, ``("next", "attention_mask")``: the text after each action.
            * ``("next", "terminated")``, bool [B, T, 1]: True where the end-of-sequence token was generated before
              the last step.
            * ``("next", "done")``, bool [B, T, 1]: True there and at the last step, which ends the padding.
            * ``("next", "reward_raw")``, [B, T, 1]: at the end of the text, the clipped difference of the end scores
              of the generated text and of the labels. 0 at other steps.
            * ``("next", "reward_kl")``, [B, T, 1]: ``-kl_coef * log_ratio``.
            * ``("next", "reward")``, [B, T, 1]: the sum of both.
        """
        texts = self._texts(generated, batch.prompt_rindex)
        masks = texts != self.EOS_TOKEN_ID
        action = generated.gather(1, self._action_columns(batch.prompt_rindex))
        end, terminated, done = self._ends(action)
        _, scores = self.reward_model(input_ids=texts[:, -1], attention_mask=masks[:, -1])
        _, label_scores = self.reward_model(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
        score = (scores - label_scores).clip(-self.score_clip, self.score_clip)
        reward_raw = score.view(-1, 1, 1) * end
        reward_kl = -self.kl_coef * log_ratio.unsqueeze(-1)
        self._kl_queue.append(reward_kl.mean())
        rollout = TensorDict(
            {
                "action": action,
                "input_ids": texts[:, :-1].clone(),
                "attention_mask": masks[:, :-1].clone(),
                "sample_log_prob": log_probs,
                "next": {
                    "input_ids": texts[:, 1:].clone(),
                    "attention_mask": masks[:, 1:].clone(),
                    "done": done,
                    "terminated": terminated,
                    "reward": reward_raw + reward_kl,
                    "reward_raw": reward_raw,
                    "reward_kl": reward_kl,
                },
            },
            batch_size=action.shape,
            device=generated.device,
        )
        named: TensorDict = rollout.refine_names(..., "time")
        return named

    def _texts(self, generated: Tensor, prompt_rindex: Tensor) -> Tensor:
        """Return the text before each action and after the last action, then padding, [B, T + 1, L + T]."""
        steps = torch.arange(self.max_new_tokens + 1, device=generated.device)
        columns = torch.arange(generated.shape[1], device=generated.device)
        written = columns < (prompt_rindex[:, None] + steps)[..., None]
        return generated.unsqueeze(1).where(written, self.EOS_TOKEN_ID)

    def _ends(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the masks of the end of each text, of terminated texts, and of done, bool [B, T, 1] each."""
        taken = self._before_end(action)
        last = taken.sum(1, keepdim=True) - 1
        end = torch.zeros_like(taken).scatter(1, last, value=True)
        final = torch.zeros_like(taken)
        final[:, -1] = True
        return end.unsqueeze(-1), (end & ~final).unsqueeze(-1), (end | final).unsqueeze(-1)

    def step_scheduler(self) -> None:
        """Update `kl_coef` with the KL terms of the rollouts since the last update.

        Raises:
            InvalidArgumentError: If `kl_scheduler` was not given, or no rollout was made since the last update.
        """
        if self.kl_scheduler is None:
            raise InvalidArgumentError(
                "kl_scheduler is None, expected a controller of the KL coefficient",
                hint="pass an AdaptiveKLController or a ConstantKLController to the constructor",
            )
        self.kl_coef = self.kl_scheduler.update(self._kl_queue)
        self._kl_queue.clear()
