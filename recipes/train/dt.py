"""Decision Transformer: actions from the last steps and the wanted return (Chen et al. 2021, arXiv:2106.01345).

R_1, s_1, a_1, R_2, s_2, a_2, ... R_K, s_K  ->  a_K          R_t: the rewards from step t to the end of the episode
loss = mean (prediction - a)^2 of the K steps of a sequence, without its padding

`SequenceTransform.dt_corl` makes the sequences of CORL's `SequenceDataset` with the returns to go of whole episodes. In
the environment, the first return to go is ``--target``, and every reward is subtracted. By default, the target is the
return of an expert, with the score 100, as in the paper. Without a score, the highest return of the dataset.

The defaults are for a run of minutes. The paper's are ``--hidden 128 128 128 --heads 1 --lr 1e-4 --warm-up 10000
--steps 100000``. Dropout, the norm of the embeddings and the linear warm-up are as in the paper.

    rlds train dt --dataset demo/pendulum
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import datasets_rl as rl
from datasets_rl import training
from datasets_rl.transforms import DoubleToFloat, SequenceTransform

NAME = "dt"
KEYS = ("observation", "action", "next.reward", "next.done")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = training.Parser(NAME, __doc__, steps=5_000, eval_every=1_000, batch_size=64)
    parser.add_number("--target", None, low=-1e12, text="first return to go, by default of the score 100")
    parser.add_integer("--length", 20, high=4_096, text="steps of a sequence")
    parser.add_hidden(64, 64, 64, equal=True, text="of the blocks of the transformer, a number for each")
    parser.add_integer("--heads", 2, high=1_000, text="of attention, a divisor of the widths")
    parser.add_number("--dropout", 0.1, high=0.9)
    parser.add_number("--lr", 1e-3, above=0, text="of AdamW")
    parser.add_integer("--warm-up", 500, low=0, text="updates in which the learning rate rises to --lr")
    args = parser.parse(argv)
    if args.hidden[0] % args.heads:
        parser.error(f"argument --heads: the number is {args.heads}, expected a divisor of the width, {args.hidden[0]}")
    return args


def open_dataset(args: argparse.Namespace, **selection: Any) -> Any:
    """Return the sequences, [B, K, ...], with returns to go."""
    sampler = rl.RandomSampler(generator=torch.Generator().manual_seed(args.seed))
    steps = [DoubleToFloat(), SequenceTransform.dt_corl(args.length, reward_scale=1.0)]
    return rl.load(args.dataset, sampler=sampler, transform=steps, final_unknown="drop", **selection).select(KEYS)


def return_scale(dataset: Any) -> float:
    """Return the factor of returns, which makes the largest absolute return 1."""
    returns = dataset.statistics["return"]
    return float(1 / max(abs(returns["min"]), abs(returns["max"]), 1e-6))


class Agent(training.Learner):
    """A policy of sequences, [B, K, ...], with continuous actions. Inputs and outputs of the network are normalized."""

    selected_by = "loss"

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args
        self.inputs = training.observation_normalizer(dataset)
        self.outputs = training.action_normalizer(NAME, dataset, space)
        self.sizes, width = (1, len(self.inputs.shift), len(self.outputs.shift)), args.hidden[0]
        self.embeddings = nn.ModuleList(nn.Linear(size, width) for size in self.sizes)  # of R, s and a
        self.embed_time = nn.Embedding(int(dataset.statistics["length"]["max"]) + args.length, width)
        self.first = nn.Sequential(nn.LayerNorm(width), nn.Dropout(args.dropout))
        options = {"dropout": args.dropout, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, args.heads, 4 * width, **options) for _ in args.hidden
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, self.sizes[2]), nn.Tanh())
        self.scale = return_scale(dataset)
        self.target = training.best_return(dataset) if args.target is None else args.target
        self.choices = {"target": self.target}
        self.to(args.device)
        self.optimizers = {"loss": torch.optim.AdamW(self.parameters(), args.lr, weight_decay=1e-4, fused=True)}

    def forward(self, returns: Tensor, states: Tensor, actions: Tensor, times: Tensor) -> Tensor:
        """Return the normalized action of each step, [B, K, A], from normalized states and actions up to that step."""
        time_tokens = self.embed_time(times.clamp(max=self.embed_time.num_embeddings - 1))
        inputs = zip(self.embeddings, (returns, states, actions), strict=True)
        tokens = torch.stack([embed(value) + time_tokens for embed, value in inputs], 2).flatten(
            1, 2
        )  # R_1, s_1, a_1 ...
        tokens, mask = (
            self.first(tokens),
            nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device),
        )
        for block in self.blocks:
            tokens = block(tokens, mask, is_causal=True)
        return self.head(tokens[:, 1::3])  # at the tokens of the states

    def start_policy(self) -> training.Policy:
        """Return the policy of new episodes, which keeps the last K steps."""
        past: list[Tensor] = []
        steps = 0

        @torch.no_grad()
        def act(observations: Any, returns: Any, _: Any) -> Any:
            nonlocal past, steps
            to_go = self.as_batch((self.target - returns) * self.scale)[:, None]
            state = self.inputs(self.as_batch(observations))
            new = [to_go, state, state.new_zeros(len(state), self.sizes[2])]
            past = past or [value[:, None][:, :0] for value in new]
            past = [
                torch.cat([old, now[:, None]], 1)[:, -self.args.length :] for old, now in zip(past, new, strict=True)
            ]
            times = torch.arange(max(0, steps + 1 - self.args.length), steps + 1, device=state.device)
            past[2][:, -1] = self(*past, times.expand(len(state), -1))[:, -1]
            steps += 1
            return self.outputs.denormalize(past[2][:, -1]).cpu().numpy()

        return act

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the transformer. Return the loss."""
        actions, mask = self.outputs(batch["action"]), batch["mask"]
        states, to_go = self.inputs(batch["observation"]), self.scale * batch["returns_to_go"]
        predicted = self(to_go, states, actions, batch["timesteps"])
        loss = functional.mse_loss(predicted[mask], actions[mask])
        self.descend("loss", loss, rate=self.args.lr * training.warm_up(step, self.args.warm_up), max_norm=0.25)
        return {"loss": loss}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Train, evaluate, and print the result as a line of JSON."""
    args = parse_arguments(argv)
    with training.Run(NAME, args, open_dataset) as run:
        return run.train(Agent(run.dataset, run.action_space, args))


if __name__ == "__main__":
    training.run_program(main)
