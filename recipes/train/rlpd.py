"""RLPD: a dataset makes online learning faster (Ball et al. 2023, arXiv:2302.02948).

Soft actor-critic with several normalized critics. Half of each batch is from the dataset, half from the new experience.

    rlds train rlpd --dataset demo/pendulum
    rlds train rlpd --dataset demo/pendulum --offline-fraction 0        # the same program without the dataset
"""

from __future__ import annotations

import argparse
import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import datasets_rl as rl
from datasets_rl import training
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.transforms import DoubleToFloat

NAME = "rlpd"
KEYS = ("observation", "action", "next.observation", "next.reward", "next.terminated", "next.done")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = training.Parser(NAME, __doc__, steps=4_000, eval_every=1_000, batch_size=128)
    parser.add_number("--offline-fraction", 0.5, high=1, text="of a batch")
    parser.add_integer("--start", 200, low=0, text="steps before the first update")
    parser.add_integer("--updates", 1, high=1_000, text="for each step of the environment")
    parser.add_integer("--critics", 4, low=2, high=100, text="of which two make a target")
    parser.add_hidden(128, 128)
    parser.add_number("--lr", 1e-3, above=0, text="of Adam")
    parser.add_number("--discount", 0.99, high=1)
    args = parser.parse(argv)
    if args.no_eval or args.validation:
        parser.error(
            "argument --no-eval or --validation: online learning has an environment, and holds out no episodes"
        )
    return args


def open_dataset(args: argparse.Namespace, **selection: Any) -> Any:
    """Return the transitions."""
    return rl.load(args.dataset, transform=DoubleToFloat(), final_unknown="drop", **selection).select(KEYS)


def normalized(width: int) -> list[nn.Module]:
    """Return the layers between two linear layers. The norm keeps values of new actions low."""
    return [nn.LayerNorm(width), nn.ReLU()]


class Agent(training.Learner):
    """A stochastic policy in the units of the environment, the critics, and the weight of the entropy."""

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args
        self.inputs = training.observation_normalizer(dataset)
        self.outputs = training.action_normalizer(NAME, dataset, space)
        states, actions = len(self.inputs.shift), len(self.outputs.shift)
        reward = dataset.statistics["next.reward"]
        self.scale = 1 / max(1e-6, np.max(reward["max"]), -np.min(reward["min"]))  # rewards of at most 1
        self.actor = training.make_mlp(states, *args.hidden, 2 * actions, between=normalized)
        self.critics = nn.ModuleList(
            training.make_mlp(states + actions, *args.hidden, 1, between=normalized) for _ in range(args.critics)
        )
        self.target_critics = copy.deepcopy(self.critics)
        self.log_alpha = nn.Parameter(torch.tensor(-2.0))
        self.to(args.device)
        self.optimizers = {
            "actor": torch.optim.Adam([*self.actor.parameters(), self.log_alpha], args.lr, fused=True),
            "critics": torch.optim.Adam(self.critics.parameters(), args.lr, fused=True),
        }

    def draw(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions in (-1, 1), [B, A], and the log-probabilities, [B, 1], for normalized states."""
        mean, log_std = self.actor(states).chunk(2, -1)
        raw = (normal := torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())).rsample()
        squashed = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))  # log (1 - tanh(raw)^2)
        return raw.tanh(), (normal.log_prob(raw) - squashed).sum(-1, keepdim=True)

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Return the mean actions [B, A] for observations [B, O], in the units of the environment."""
        return self.outputs.denormalize(self.actor(self.inputs(observation)).chunk(2, -1)[0].tanh())

    @torch.no_grad()
    def explore(self, observation: Tensor) -> Tensor:
        """Return random actions of the policy."""
        return self.outputs.denormalize(self.draw(self.inputs(observation))[0])

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the critics, of the actor and of the weight of the entropy. Return the losses."""
        del step
        state, following = self.inputs(batch["observation"]), self.inputs(batch["next", "observation"])
        pair, alpha = torch.cat([state, self.outputs(batch["action"])], -1), self.log_alpha.detach().exp()
        with torch.no_grad():
            next_action, log_probability = self.draw(following)
            two = [self.target_critics[one] for one in torch.randperm(self.args.critics)[:2].tolist()]
            values = torch.minimum(*(critic(torch.cat([following, next_action], -1)) for critic in two))
            alive = self.args.discount * ~batch["next", "terminated"]
            target = self.scale * batch["next", "reward"] + alive * (values - alpha * log_probability)
        losses = {"critics": torch.stack([functional.mse_loss(critic(pair), target) for critic in self.critics]).sum()}
        self.descend("critics", losses["critics"])
        self.follow(self.target_critics, self.critics, 0.02)
        action, log_probability = self.draw(state)
        values = torch.stack([critic(torch.cat([state, action], -1)) for critic in self.critics])
        losses["actor"] = (alpha * log_probability - values.mean(0)).mean()
        losses["alpha"] = self.log_alpha * (action.shape[-1] - log_probability.detach().mean())  # entropy above -A
        self.descend("actor", losses["actor"] + losses["alpha"])
        return losses


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Train, evaluate, and print the result as a line of JSON."""
    args = parse_arguments(argv)
    with training.Run(NAME, args, open_dataset) as run:
        if run.envs is None:
            raise InvalidArgumentError(f"{NAME} learns online, and {args.dataset} names no environment")
        dataset = run.dataset.single("a batch is half of a dataset and half of new steps")
        agent = Agent(run.dataset, run.action_space, args)
        rb = rl.OfflineToOnlineReplayBuffer(
            dataset, online_capacity=args.steps + 10_000, interleave=True, missing="drop"
        )
        rb.offline_fraction = args.offline_fraction
        return run.train(
            agent, source=training.OnlineEpisodes(agent, lambda: agent.explore, dataset.make_env(), rb, args)
        )


if __name__ == "__main__":
    training.run_program(main)
