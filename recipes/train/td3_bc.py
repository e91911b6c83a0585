"""TD3+BC: TD3 with an actor that also imitates the data (Fujimoto and Gu 2021, arXiv:2106.06860).

actor   = min  -lambda Q(s, pi(s)) + (pi(s) - a)^2        lambda = alpha / mean |Q|
critics = min  (Q(s, a) - r - gamma min Q'(s', pi'(s') + noise))^2

    rlds train td3_bc --dataset demo/pendulum
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from datasets_rl import training

NAME = "td3_bc"
KEYS = ("observation", "action", "next.observation", "next.reward", "next.terminated")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = training.Parser(
        NAME, __doc__, steps=50_000, eval_every=5_000, batch_size=256, paper="the paper takes 1,000,000"
    )
    parser.add_actor_critic()
    parser.add_number("--alpha", 2.5, text="weight of the values against imitation")
    parser.add_number("--policy-noise", 0.2, text="noise of target actions, in [-1, 1]")
    parser.add_number("--noise-clip", 0.5)
    parser.add_integer("--policy-every", 2, text="updates of the critics for an update of the actor")
    return parser.parse(argv)


def open_dataset(args: argparse.Namespace, **selection: Any) -> Any:
    """Return the transitions, drawn with replacement."""
    return training.load_transitions(args, KEYS, **selection)


class Agent(training.Learner):
    """A policy with the units of the environment, and two critics, for states [B, O] and actions [B, A]."""

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args
        self.inputs = training.observation_normalizer(dataset)
        self.outputs = training.action_normalizer(NAME, dataset, space)
        states, actions = len(self.inputs.shift), len(self.outputs.shift)
        self.actor = nn.Sequential(training.make_mlp(states, *args.hidden, actions), nn.Tanh())
        self.critics = nn.ModuleList(training.make_mlp(states + actions, *args.hidden, 1) for _ in range(2))
        self.target_actor, self.target_critics = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.to(args.device)
        self.optimizers = {
            "actor": torch.optim.Adam(self.actor.parameters(), args.lr, fused=True),
            "critics": torch.optim.Adam(self.critics.parameters(), args.lr, fused=True),
        }

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Return the actions [B, A] for observations [B, O], in the units of the environment."""
        return self.outputs.denormalize(self.actor(self.inputs(observation)))

    @torch.no_grad()
    def target(self, batch: Any) -> Tensor:
        """Return r + gamma min Q'(s', a'), [B, 1], where a' has clipped noise and s' is not terminal."""
        state, action = self.inputs(batch["next", "observation"]), self.outputs(batch["action"])
        noise = torch.randn(action.shape, device=action.device) * self.args.policy_noise
        noise = noise.clamp(-self.args.noise_clip, self.args.noise_clip)
        pair = torch.cat([state, (self.target_actor(state) + noise).clamp(-1, 1)], -1)
        value = torch.minimum(*(critic(pair) for critic in self.target_critics))
        return batch["next", "reward"] + self.args.discount * ~batch["next", "terminated"] * value

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the critics, and in every second step of the actor, and return the losses."""
        state, action, target = self.inputs(batch["observation"]), self.outputs(batch["action"]), self.target(batch)
        pair = torch.cat([state, action], -1)
        losses = {"critics": torch.stack([functional.mse_loss(critic(pair), target) for critic in self.critics]).sum()}
        self.descend("critics", losses["critics"])
        if step % self.args.policy_every == 0:
            chosen = self.actor(state)
            value = self.critics[0](torch.cat([state, chosen], -1))
            weight = self.args.alpha / value.abs().mean().detach()
            losses["actor"] = functional.mse_loss(chosen, action) - weight * value.mean()
            self.descend("actor", losses["actor"])
            self.follow(self.target_actor, self.actor, self.args.tau)
            self.follow(self.target_critics, self.critics, self.args.tau)
        return losses


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Train, evaluate, and print the result as a line of JSON."""
    args = parse_arguments(argv)
    with training.Run(NAME, args, open_dataset) as run:
        return run.train(Agent(run.dataset, run.action_space, args))


if __name__ == "__main__":
    training.run_program(main)
