"""Behavior cloning (BC): a policy that predicts the actions of the data, for continuous and for discrete actions.

loss = mean (pi(s) - a)^2            continuous actions, scaled to [-1, 1]
loss = mean -log pi(a | s)           discrete actions

The baseline of every offline method. On the best tenth of the episodes, BC is 10%BC: give the id of the dataset that
`rlds preprocess ID --recipe top_10_percent` writes.

    rlds train bc --dataset demo/pendulum
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from datasets_rl import training

NAME = "bc"
KEYS = ("observation", "action")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = training.Parser(NAME, __doc__, steps=20_000, eval_every=5_000, batch_size=256)
    parser.add_hidden(256, 256)
    parser.add_number("--lr", 3e-4, above=0, text="of Adam")
    return parser.parse(argv)


def open_dataset(args: argparse.Namespace, **selection: Any) -> Any:
    """Return the steps, drawn with replacement."""
    return training.load_transitions(args, KEYS, final_unknown="keep", **selection)


class Agent(training.Learner):
    """A policy with the units of the environment: observations [B, O] to actions [B, A], or to choices [B]."""

    selected_by = "actor"

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        self.inputs = training.observation_normalizer(dataset)
        self.discrete = hasattr(space, "n")
        if not self.discrete:
            self.outputs = training.action_normalizer(NAME, dataset, space)
        outputs = int(space.n) if self.discrete else len(self.outputs.shift)
        self.actor = training.make_mlp(len(self.inputs.shift), *args.hidden, outputs)
        self.to(args.device)
        self.optimizers = {"actor": torch.optim.Adam(self.actor.parameters(), args.lr, fused=True)}

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Return the best actions for observations [B, O], in the units of the environment."""
        output = self.actor(self.inputs(observation))
        return output.argmax(-1) if self.discrete else self.outputs.denormalize(output.tanh())

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the policy and return the loss."""
        del step
        output, action = self.actor(self.inputs(batch["observation"])), batch["action"]
        if self.discrete:
            loss = functional.cross_entropy(output, action.flatten())
        else:
            loss = functional.mse_loss(output.tanh(), self.outputs(action))
        self.descend("actor", loss)
        return {"actor": loss}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Train, evaluate, and print the result as a line of JSON."""
    args = parse_arguments(argv)
    with training.Run(NAME, args, open_dataset) as run:
        return run.train(Agent(run.dataset, run.action_space, args))


if __name__ == "__main__":
    training.run_program(main)
