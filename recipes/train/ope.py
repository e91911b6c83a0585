"""OPE: the value of a trained policy from the data alone, by fitted Q evaluation (Le et al. 2019, arXiv:1903.08738).

Q = min  (Q(s, a) - r - gamma Q'(s', pi(s')))^2          value of the policy = mean Q(s_0, pi(s_0)) of the episodes

``--policy`` is a checkpoint of bc, td3_bc, iql, cql or rebrac. The estimate is compared with the discounted return in the
environment. Time-outs do not end the value: later rewards count, too.

    rlds train iql --dataset demo/pendulum --out runs/iql
    rlds train ope --dataset demo/pendulum --policy runs/iql/checkpoint.pt
"""

from __future__ import annotations

import argparse
import copy
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from datasets_rl import training

NAME = "ope"
KEYS = ("observation", "action", "next.observation", "next.reward", "next.terminated")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = training.Parser(NAME, __doc__, steps=20_000, eval_every=5_000, batch_size=256)
    parser.add_argument("--policy", required=True, metavar="FILE", help="the checkpoint of the policy")
    parser.add_argument(
        "--algorithm", metavar="NAME", help="the program of the policy, by default the program of the checkpoint"
    )
    parser.add_actor_critic()
    return parser.parse(argv)


def open_dataset(args: argparse.Namespace, **selection: Any) -> Any:
    """Return the transitions, drawn with replacement."""
    return training.load_transitions(args, KEYS, **selection)


def load_policy(dataset: Any, space: Any, args: argparse.Namespace) -> Any:
    """Return the agent of another program from a checkpoint. The `act` of the agent is the policy."""
    state = training.read_checkpoint(Path(args.policy))
    settings = state["settings"]
    program = importlib.import_module(f"datasets_rl.recipes.train.{args.algorithm or settings['program']}")
    agent = program.Agent(dataset, space, argparse.Namespace(**settings, device=args.device))
    agent.load_state_dict(state["networks"])
    return agent.requires_grad_(requires_grad=False)


def normalized(width: int) -> list[nn.Module]:
    """Return the layers between two linear layers."""
    return [nn.LayerNorm(width), nn.ReLU()]


class Agent(training.Learner):
    """The value of a policy: observations [B, O] and actions [B, A] in the units of the environment to values [B, 1]."""

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace, policy: Any) -> None:
        super().__init__()
        self.args = args
        self.inputs = training.observation_normalizer(dataset)
        self.outputs = training.action_normalizer(NAME, dataset, space)
        rewards = dataset.statistics["next.reward"]
        # Targets of the size of a reward: the scale of values is then at most 1 / (1 - discount).
        self.scale = max(abs(float(np.min(rewards["min"]))), abs(float(np.max(rewards["max"])))) or 1.0
        inputs = len(self.inputs.shift) + len(self.outputs.shift)
        self.critic = training.make_mlp(inputs, *args.hidden, 1, between=normalized)
        self.target_critic = copy.deepcopy(self.critic)
        self.to(args.device)
        self.optimizers = {"loss": torch.optim.Adam(self.critic.parameters(), args.lr, fused=True)}
        self.policy = policy.act  # a bound method is no module: its parameters are not part of the state

    def value(self, critic: nn.Module, observation: Tensor, action: Tensor) -> Tensor:
        """Return the values of actions, [B, 1], in units of the scale."""
        return critic(torch.cat([self.inputs(observation), self.outputs(action)], -1))

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the value. Return the loss."""
        del step
        following = batch["next", "observation"]
        with torch.no_grad():
            alive = self.args.discount * ~batch["next", "terminated"]
            next_value = self.value(self.target_critic, following, self.policy(following))
            target = batch["next", "reward"] / self.scale + alive * next_value
        loss = functional.mse_loss(self.value(self.critic, batch["observation"], batch["action"]), target)
        self.descend("loss", loss)
        self.follow(self.target_critic, self.critic, self.args.tau)
        return {"loss": loss}

    @torch.no_grad()
    def estimate(self, first: Tensor) -> dict[str, float]:
        """Return the value of the policy in the first states [E, O], and its 95% interval over the episodes."""
        values = self.scale * self.value(self.critic, first, self.policy(first)).flatten().cpu().double().numpy()
        draws = np.random.default_rng(0).choice(values, (2_000, len(values))).mean(1)
        low, high = np.quantile(draws, [0.025, 0.975])
        return {"estimate": float(values.mean()), "estimate_low": float(low), "estimate_high": float(high)}


def measure(run: training.Run, policy: Any, discount: float) -> dict[str, float]:
    """Return the mean return of the policy in the environment, with and without discount."""
    if run.envs is None:
        return {}
    rewards = [np.zeros(run.envs.num_envs)]  # sums of rewards until each step

    def act(observations: Any, returns: Any, _: Any) -> Any:
        rewards.append(returns)
        return policy.act(policy.as_batch(observations)).cpu().numpy()

    returns = run.play(act).returns
    steps = np.diff([*rewards[1:], returns], axis=0)
    discounted = (discount ** np.arange(len(steps))[:, None] * steps).sum(0)
    return {"return": float(returns.mean()), "discounted_return": float(discounted.mean())}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Train, evaluate, and print the result as a line of JSON."""
    args = parse_arguments(argv)
    with training.Run(NAME, args, open_dataset) as run:
        policy = load_policy(run.dataset, run.action_space, args)
        agent = Agent(run.dataset, run.action_space, args, policy)
        first = run.dataset.first_observations().to(args.device)
        measured = measure(run, policy, args.discount)
        return run.train(agent, evaluate=lambda: {**agent.estimate(first), **measured})


if __name__ == "__main__":
    training.run_program(main)
