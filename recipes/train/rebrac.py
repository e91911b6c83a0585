"""ReBRAC: TD3+BC with penalties of the actor and of the critics, layer norms and depth (Tarasov et al. 2023, arXiv:2305.09836).

actor   = min  actor_penalty (pi(s) - a)^2 - min Q(s, pi(s)) / mean |Q|
critics = min  (Q(s, a) - r - gamma (min Q'(s', p) - critic_penalty (p - a')^2))^2        p = pi'(s') + noise

a' is the next action in the data: a window of two actions has both.

    rlds train rebrac --dataset demo/pendulum
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from datasets_rl import training
from datasets_rl.transforms import WindowTransform

NAME = "rebrac"
KEYS = ("observation", "action", "next.observation", "next.reward", "next.terminated")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = training.Parser(
        NAME, __doc__, steps=50_000, eval_every=5_000, batch_size=256, paper="the paper takes 1,000,000"
    )
    parser.add_actor_critic(hidden=[256, 256, 256], lr=1e-3)
    parser.add_number("--actor-penalty", 0.1, text="weight of imitation, which the paper tunes")
    parser.add_number("--critic-penalty", 0.01, text="the same in the targets of the critics")
    parser.add_number("--policy-noise", 0.2, text="noise of target actions, in [-1, 1]")
    parser.add_number("--noise-clip", 0.5)
    parser.add_integer("--policy-every", 2, text="updates of the critics for an update of the actor")
    return parser.parse(argv)


def open_dataset(args: argparse.Namespace, **selection: Any) -> Any:
    """Return the transitions, drawn with replacement, each with the next action too."""
    actions = WindowTransform({"action": (0, 1)}, pad="repeat")
    return training.load_transitions(args, KEYS, actions, **selection)


def normalized(width: int) -> list[nn.Module]:
    """Return the layers between two linear layers of a critic."""
    return [nn.ReLU(), nn.LayerNorm(width)]


class Agent(training.Learner):
    """A policy with the units of the environment, and two critics, for states [B, O] and actions [B, A]."""

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args
        self.inputs = training.observation_normalizer(dataset)
        self.outputs = training.action_normalizer(NAME, dataset, space)
        states, actions = len(self.inputs.shift), len(self.outputs.shift)
        self.actor = nn.Sequential(training.make_mlp(states, *args.hidden, actions), nn.Tanh())
        self.critics = nn.ModuleList(
            training.make_mlp(states + actions, *args.hidden, 1, between=normalized) for _ in range(2)
        )
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
    def target(self, batch: Any, next_action: Tensor) -> Tensor:
        """Return r + gamma (min Q'(s', p) - penalty (p - a')^2), [B, 1], where p is the target's action with noise."""
        state = self.inputs(batch["next", "observation"])
        noise = torch.randn(next_action.shape, device=state.device) * self.args.policy_noise
        chosen = (self.target_actor(state) + noise.clamp(-self.args.noise_clip, self.args.noise_clip)).clamp(-1, 1)
        value = torch.minimum(*(critic(torch.cat([state, chosen], -1)) for critic in self.target_critics))
        value -= self.args.critic_penalty * (chosen - next_action).square().sum(-1, keepdim=True)
        return batch["next", "reward"] + self.args.discount * ~batch["next", "terminated"] * value

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the critics, and in every second step of the actor, and return the losses."""
        state, (action, next_action) = self.inputs(batch["observation"]), self.outputs(batch["action"]).unbind(1)
        target, pair = self.target(batch, next_action), torch.cat([state, action], -1)
        losses = {"critics": torch.stack([functional.mse_loss(critic(pair), target) for critic in self.critics]).sum()}
        self.descend("critics", losses["critics"])
        if step % self.args.policy_every == 0:
            chosen = self.actor(state)
            value = torch.minimum(*(critic(torch.cat([state, chosen], -1)) for critic in self.critics))
            penalty = (chosen - action).square().sum(-1, keepdim=True)
            weight = 1 / value.abs().mean().detach()
            losses["actor"] = (self.args.actor_penalty * penalty - weight * value).mean()
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
