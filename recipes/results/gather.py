"""Datasets of several qualities from a run of SAC: random, medium, medium-replay and expert, as in D4RL.

critics = min  (Q(s, a) - r - gamma (min Q'(s', b) - alpha log pi(b | s')))^2          b of the policy
actor   = min  alpha log pi(b | s) - min Q(s, b)                   (Haarnoja et al. 2018, arXiv:1812.05905)

    python -m datasets_rl.recipes.results.gather Pendulum-v1                  # local/pendulum-expert and three others
    python -m datasets_rl.recipes.results.gather Hopper-v5 --steps 200000 --hidden 256 256
    python -m datasets_rl.recipes.results.gather CartPole-v1

random         actions drawn from the action space
medium         the first policy half way from random to expert
medium-replay  all steps of the training run until then
expert         the best policy of the run

Scores: 0 is the mean return of random, and 1 that of the best policy. Discrete actions use the same losses with sums over
all actions (Christodoulou 2019, arXiv:1910.07207).
"""

from __future__ import annotations

import argparse
import copy
import sys
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.nn import functional

import datasets_rl as rl


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = argparse.ArgumentParser("gather", description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("environment", metavar="ENVIRONMENT", help="of Gymnasium, such as Pendulum-v1")
    parser.add_argument("--name", help="of the datasets: local/NAME-expert; by default that of the environment")
    parser.add_argument("--seed", type=int, default=0, help="the default is %(default)s")
    parser.add_argument("--steps", type=int, default=10_000, help="steps of the training run; default %(default)s")
    parser.add_argument(
        "--start", type=int, default=1_000, metavar="STEPS", help="random steps before the first update"
    )
    parser.add_argument("--eval-every", type=int, default=1_000, metavar="STEPS", help="a policy is kept so often")
    parser.add_argument("--eval-episodes", type=int, default=10, metavar="N", help="the default is %(default)s")
    parser.add_argument("--episodes", type=int, default=100, metavar="N", help="of random, medium and expert")
    parser.add_argument("--batch-size", type=int, default=128, help="the default is %(default)s")
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64], metavar="WIDTH")
    parser.add_argument("--lr", type=float, default=1e-3, help="of Adam; the default is %(default)s")
    parser.add_argument("--discount", type=float, default=0.99, help="the default is %(default)s")
    parser.add_argument("--tau", type=float, default=0.005)
    args = parser.parse_args(argv)
    args.name = args.name or args.environment.rpartition("-v")[0].replace("/", "-").lower()
    return args


def make_mlp(*widths: int) -> nn.Sequential:
    """Return linear layers with a ReLU between each two."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Agent(nn.Module):
    """SAC for states [B, O] and actions [B, A] in [-1, 1], or choices [B]."""

    def __init__(self, env: gymnasium.Env[Any, Any], args: argparse.Namespace) -> None:
        super().__init__()
        space, states = env.action_space, int(np.prod(env.observation_space.shape or ()))
        self.args, self.discrete = args, isinstance(space, gymnasium.spaces.Discrete)
        if isinstance(space, gymnasium.spaces.Discrete):
            inputs, outputs, actions = states, int(space.n), int(space.n)
        else:
            low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)  # type: ignore[attr-defined]
            self.outputs = rl.Normalizer((low + high) / 2, (high - low) / 2)
            inputs, outputs, actions = states + len(low), 1, 2 * len(low)
        self.actor = make_mlp(states, *args.hidden, actions)
        self.critics = nn.ModuleList(make_mlp(inputs, *args.hidden, outputs) for _ in range(2))
        self.target_critics = copy.deepcopy(self.critics)
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.entropy = 0.3 * float(np.log(actions)) if self.discrete else -actions / 2
        groups = [self.actor.parameters(), self.critics.parameters(), [self.log_alpha]]
        self.optimizers = [torch.optim.Adam(group, args.lr, fused=True) for group in groups]

    def draw(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions [B, 1 or K, A], their probabilities and the logarithms of their densities [B, 1 or K, 1]."""
        output = self.actor(state)
        if self.discrete:
            every = torch.arange(output.shape[-1]).expand(len(state), -1)[..., None]
            return every, output.softmax(-1)[..., None], output.log_softmax(-1)[..., None]
        mean, log_std = output.unsqueeze(1).chunk(2, -1)
        policy = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        drawn = policy.rsample()
        squash = 2 * (np.log(2) - drawn - functional.softplus(-2 * drawn))  # log(1 - tanh^2)
        return drawn.tanh(), torch.ones(()), (policy.log_prob(drawn) - squash).sum(-1, keepdim=True)

    def values(self, critics: Any, state: Tensor, actions: Tensor) -> list[Tensor]:
        """Return the values of actions [B, K, A] of each critic, [B, K, 1]."""
        if self.discrete:
            return [critic(state).unsqueeze(-1).gather(1, actions) for critic in critics]
        pair = torch.cat([state.unsqueeze(1).expand(-1, actions.shape[1], -1), actions], -1)
        return [critic(pair) for critic in critics]

    def update(self, batch: Any) -> None:
        """Take a step of the critics, of the actor and of the temperature."""
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            actions, weight, log_density = self.draw(batch["next", "observation"])
            value = torch.minimum(*self.values(self.target_critics, batch["next", "observation"], actions))
            value = (weight * (value - alpha * log_density)).sum(1)
            target = batch["next", "reward"] + self.args.discount * ~batch["next", "terminated"] * value
        taken = batch["action"].reshape(len(batch), 1, -1)
        taken = taken if self.discrete else self.outputs(taken)
        found = self.values(self.critics, batch["observation"], taken)
        critic_loss = torch.stack([functional.mse_loss(one[:, 0], target) for one in found]).sum()
        actions, weight, log_density = self.draw(batch["observation"])
        value = torch.minimum(*self.values(self.critics, batch["observation"], actions))
        actor_loss = (weight * (alpha * log_density - value)).sum(1).mean()
        excess = (weight * log_density).sum(1).mean().detach() + self.entropy
        for optimizer, loss in zip(self.optimizers, (actor_loss, critic_loss, -self.log_alpha * excess), strict=True):
            for group in optimizer.param_groups:
                inputs = group["params"]
                for parameter, gradient in zip(inputs, torch.autograd.grad(loss, inputs), strict=True):
                    parameter.grad = gradient
        for optimizer in self.optimizers:
            optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target_critics.parameters(), self.critics.parameters(), strict=True):
                slow.lerp_(fast, self.args.tau)

    @torch.no_grad()
    def act(self, observation: Any, *, best: bool = False) -> Any:
        """Return an action for an observation, in the environment's units: drawn from the policy, or the best."""
        output = self.actor(torch.as_tensor(observation, dtype=torch.float32).flatten())
        if self.discrete:
            return int(output.argmax() if best else torch.distributions.Categorical(logits=output).sample())
        mean, log_std = output.chunk(2, -1)
        drawn = mean if best else torch.normal(mean, log_std.clamp(-5, 2).exp())
        return self.outputs.denormalize(drawn.tanh()).numpy()


def play(env: gymnasium.Env[Any, Any], policy: Any, episodes: int, seed: int) -> float:
    """Return the mean return of some episodes."""
    total = 0.0
    for episode in range(episodes):
        (observation, _), ended = env.reset(seed=seed + episode), False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(policy(observation))
            total, ended = total + float(reward), terminated or truncated
    return total / episodes


def train(env: gymnasium.Env[Any, Any], args: argparse.Namespace) -> tuple[Any, list[tuple[int, float, Agent]]]:
    """Return all steps that were taken, and the policies on the way: the step, the mean return, the policy."""
    agent, test_env = Agent(env, args), gymnasium.make(args.environment)
    steps = rl.TensorDictReplayBuffer(storage=rl.LazyTensorStorage(args.steps), batch_size=args.batch_size)
    kept: list[tuple[int, float, Agent]] = []
    observation, _ = env.reset(seed=args.seed)
    for step in range(args.steps):
        action = agent.act(observation) if step >= args.start else env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        flags = {"terminated": [terminated], "truncated": [truncated], "done": [terminated or truncated]}
        values = {"observation": torch.as_tensor(following).float(), "reward": [float(reward)], **flags}
        steps.add(
            TensorDict(
                {
                    "observation": torch.as_tensor(observation).float(),
                    "action": torch.as_tensor(action),
                    "next": TensorDict({name: torch.as_tensor(value) for name, value in values.items()}),
                }
            )
        )
        observation = env.reset()[0] if terminated or truncated else following
        if step >= args.start:
            agent.update(steps.sample())
        if (step + 1) % args.eval_every == 0:
            mean = play(test_env, lambda state: agent.act(state, best=True), args.eval_episodes, 10_000 + args.seed)
            kept.append((step + 1, mean, copy.deepcopy(agent)))
            sys.stderr.write(f"step {step + 1:,}  return {mean:,.1f}\n")
    return steps[:], kept


def record(args: argparse.Namespace, level: str, policy: Any, score: tuple[float, float]) -> None:
    """Record episodes of a policy as a dataset."""
    env = gymnasium.make(args.environment)
    metadata = {"algorithm": f"SAC, {level}", "seed": args.seed}
    recorder = rl.RecordEpisodes(env, f"local/{args.name}-{level}", metadata=metadata, score=score)
    env.action_space.seed(args.seed)
    mean = play(recorder, policy, args.episodes, 100_000 + args.seed)
    recorder.close()
    sys.stderr.write(f"local/{args.name}-{level}: {args.episodes:,} episodes, mean return {mean:,.1f}\n")


def record_replay(args: argparse.Namespace, steps: Any, score: tuple[float, float]) -> None:
    """Write the steps of the training run as a dataset. The last episode ends as truncated."""
    env = gymnasium.make(args.environment)
    spec = env.spec.to_json() if env.spec else ""
    metadata = {"algorithm": "SAC, medium-replay", "seed": args.seed, "env_spec": spec}
    with rl.EpisodeWriter(f"local/{args.name}-medium-replay", metadata=metadata, score=score) as writer:
        first = True
        for step in steps:
            if first:
                writer.start(step["observation"])
            ends = step["next", "terminated"].item(), step["next", "truncated"].item()
            writer.step(step["action"], step["next", "observation"], step["next", "reward"].item(), *ends)
            first = any(ends)
        writer.end()
    sys.stderr.write(f"local/{args.name}-medium-replay: {len(steps):,} steps\n")


def main(argv: list[str] | None = None) -> None:
    """Train, and write the four datasets."""
    args = parse_arguments(argv)
    there = [str(one) for one in rl.list_datasets(downloaded=True) if str(one).startswith(f"local/{args.name}-")]
    if there:
        raise SystemExit(f"{', '.join(there)} exist: remove them with rlds remove, or give another --name")
    torch.manual_seed(args.seed)
    env = gymnasium.make(args.environment)
    env.action_space.seed(args.seed)
    low = play(env, lambda _: env.action_space.sample(), 4 * args.eval_episodes, args.seed)
    steps, kept = train(env, args)
    _, high, expert = max(kept, key=lambda one: one[1])
    if high <= low:
        raise SystemExit(f"no policy was better than random actions, which return {low:,.1f}: give more --steps")
    until, _, medium = next(one for one in kept if one[1] >= (low + high) / 2)
    record(args, "random", lambda _: np.asarray(env.action_space.sample()), (low, high))
    record(args, "medium", medium.act, (low, high))
    record(args, "expert", expert.act, (low, high))
    record_replay(args, steps[:until], (low, high))


if __name__ == "__main__":
    main()
