"""CQL: critics that are low for actions outside of the data (Kumar et al. 2020, arXiv:2006.04779), with the actor of SAC.

critics = min  weight (log sum exp Q(s, .) - Q(s, a)) + (Q(s, a) - r - gamma min Q'(s', a'))^2        a' of the policy
actor   = min  alpha log pi(b | s) - min Q(s, b)                                                       b of the policy

The sum is over random actions and over those of the policy in s and in s', weighted by their densities: CQL(H).

    rlds train cql --dataset demo/pendulum
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import datasets_rl as rl

NAME = "cql"
KEYS = ("observation", "action", "next.observation", "next.reward", "next.terminated")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = argparse.ArgumentParser(NAME, description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--dataset", required=True, metavar="ID", help="such as demo/pendulum or d4rl/hopper-medium-v2")
    parser.add_argument("--seed", type=int, default=0, help="the default is %(default)s")
    parser.add_argument("--device", default="cpu", help="cpu or cuda: of the networks, and of the data")
    parser.add_argument("--steps", type=int, default=50_000, help="default %(default)s; the paper takes 1,000,000")
    parser.add_argument("--eval-every", type=int, default=5_000, metavar="N", help="also saved; default %(default)s")
    parser.add_argument("--eval-episodes", type=int, default=10, metavar="N", help="the default is %(default)s")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="checkpoint and logs; by default runs/NAME/ID/SEED")
    parser.add_argument("--wandb", metavar="PROJECT", help="log to Weights & Biases too")
    parser.add_argument("--batch-size", type=int, default=256, help="the default is %(default)s")
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256], metavar="WIDTH")
    parser.add_argument("--lr", type=float, default=3e-4, help="of Adam; the default is %(default)s")
    parser.add_argument("--discount", type=float, default=0.99, help="the default is %(default)s")
    parser.add_argument("--tau", type=float, default=0.005, help="share of the networks in an update of the targets")
    parser.add_argument("--weight", type=float, default=5.0, help="weight of the penalty of other actions")
    parser.add_argument("--samples", type=int, default=10, help="actions of each kind in the penalty")
    parser.add_argument("--actor-lr", type=float, default=1e-4)
    parser.add_argument("--reward-scale", type=float, help="by default 1,000 / (highest - lowest return), as in IQL")
    args = parser.parse_args(argv)
    args.out = args.out or Path("runs", NAME, args.dataset.lstrip("./~"), str(args.seed))
    return args


def make_mlp(*widths: int) -> nn.Sequential:
    """Return linear layers with a ReLU between each two."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Agent(nn.Module):
    """A squashed Gaussian policy with the units of the environment, and two critics, for states [B, O], actions [B, A]."""

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        if not isinstance(space, gymnasium.spaces.Box):
            raise SystemExit(f"{NAME} needs continuous actions; those of {args.dataset} are {space}")
        low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
        self.args = args
        self.inputs = rl.Normalizer.from_statistics(dataset.statistics["observation"])
        self.outputs = rl.Normalizer((low + high) / 2, (high - low) / 2)
        states, actions = len(self.inputs.shift), len(low)
        returns = dataset.statistics["return"]  # to a range of 1,000, as in IQL
        self.reward_scale = args.reward_scale or 1_000 / ((returns["max"] - returns["min"]) or 1_000)
        self.actor = make_mlp(states, *args.hidden, 2 * actions)
        self.critics = nn.ModuleList(make_mlp(states + actions, *args.hidden, 1) for _ in range(2))
        self.target_critics = copy.deepcopy(self.critics)
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.to(args.device)
        self.noise = torch.Generator(args.device).manual_seed(args.seed)
        self.optimizers = {
            "actor": torch.optim.Adam(self.actor.parameters(), args.actor_lr, fused=True),
            "alpha": torch.optim.Adam([self.log_alpha], args.actor_lr, fused=True),
            "critics": torch.optim.Adam(self.critics.parameters(), args.lr, fused=True),
        }

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Return the mean actions [B, A] for observations [B, O], in the units of the environment."""
        return self.outputs.denormalize(self.actor(self.inputs(observation)).chunk(2, -1)[0].tanh())

    def draw(self, state: Tensor, count: int = 1) -> tuple[Tensor, Tensor]:
        """Draw actions [count, B, A] in [-1, 1] from the policy, and return the logarithms of their densities too."""
        mean, log_std = self.actor(state).expand(count, -1, -1).chunk(2, -1)
        policy = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        drawn = policy.mean + policy.stddev * torch.randn(mean.shape, generator=self.noise, device=state.device)
        squash = 2 * (math.log(2) - drawn - functional.softplus(-2 * drawn))  # log(1 - tanh^2), without cancellation
        return drawn.tanh(), (policy.log_prob(drawn) - squash).sum(-1, keepdim=True)

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the actor and its entropy, and of the critics; return the losses."""
        del step
        state, next_state = self.inputs(batch["observation"]), self.inputs(batch["next", "observation"])
        (chosen, log_density), alpha = self.draw(state), self.log_alpha.exp().detach()
        value = torch.minimum(*(critic(torch.cat([state[None], chosen], -1)) for critic in self.critics))
        losses = {"actor": (alpha * log_density - value).mean()}
        self.descend("actor", losses["actor"])
        self.descend("alpha", -(self.log_alpha * (log_density.detach().mean() - chosen.shape[-1])))
        with torch.no_grad():
            here, there = self.draw(state, self.args.samples), self.draw(next_state, self.args.samples)
            random = 2 * torch.rand(here[0].shape, generator=self.noise, device=state.device) - 1
            uniform = torch.full_like(here[1], -math.log(2) * random.shape[-1])
            actions, densities = torch.cat([random, here[0], there[0]]), torch.cat([uniform, here[1], there[1]])
            pair = torch.cat([next_state, there[0][0]], -1)
            next_value = torch.minimum(*(critic(pair) for critic in self.target_critics))
            alive = self.args.discount * ~batch["next", "terminated"]
            target = self.reward_scale * batch["next", "reward"] + alive * next_value
        pair, losses["critics"] = torch.cat([state, self.outputs(batch["action"])], -1), torch.zeros(())
        for critic in self.critics:
            value = critic(pair)
            other = critic(torch.cat([state.expand(len(actions), -1, -1), actions], -1)) - densities
            penalty = torch.logsumexp(other, 0).mean() - value.mean()
            losses["critics"] = losses["critics"] + self.args.weight * penalty + functional.mse_loss(value, target)
        self.descend("critics", losses["critics"])
        self.follow(self.target_critics, self.critics)
        return losses

    def descend(self, name: str, loss: Tensor) -> None:
        """Take a step of one optimizer."""
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()

    @torch.no_grad()
    def follow(self, target: nn.Module, network: nn.Module) -> None:
        """Move the target network towards the network."""
        for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
            slow.lerp_(fast, self.args.tau)


def evaluate(agent: Agent, envs: Any, args: argparse.Namespace) -> dict[str, float]:
    """Return the mean return of one episode in each environment, and the interquartile mean of the scores, in percent."""
    observations, _ = envs.reset(seed=1_000 * args.seed)
    returns, running = np.zeros(envs.num_envs), np.ones(envs.num_envs, bool)
    while running.any():
        actions = agent.act(torch.as_tensor(observations, dtype=torch.float32, device=args.device))
        observations, rewards, terminated, truncated, _ = envs.step(actions.cpu().numpy())
        returns += rewards * running
        running &= ~(terminated | truncated)
    found = {"return": float(returns.mean()), "return_std": float(returns.std())}
    try:
        score = rl.interquartile_mean(rl.normalized_score(args.dataset, returns, percent=True))
    except rl.InvalidArgumentError:  # there are no reference scores
        return found
    return {**found, "score": score.value, "score_low": score.low, "score_high": score.high}


def open_log(args: argparse.Namespace, step: int) -> Any:
    """Return a writer of TensorBoard's files, which W&B copies; None if TensorBoard is not installed."""
    if args.wandb:
        import wandb

        wandb.init(project=args.wandb, name=str(args.out), config=vars(args), sync_tensorboard=True)
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(args.out, purge_step=step + 1)


def load_checkpoint(path: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return the checkpoint of a run with the same settings, if there is one."""
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    other = [f"{name} {value}" for name, value in state["settings"].items() if settings.get(name) != value]
    if other:
        raise SystemExit(f"{path} is of a run with {', '.join(other)}: give another --out, or delete it")
    return state


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Train, evaluate, and print the result as one line of JSON."""
    args = parse_arguments(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    sampler = rl.RandomSampler(generator=torch.Generator(args.device).manual_seed(args.seed))
    dataset = rl.load(args.dataset, sampler=sampler, transform=rl.DoubleToFloat(), final_unknown="drop").show(KEYS)
    if args.device != "cpu":
        dataset.to(args.device)
    envs = gymnasium.vector.SyncVectorEnv([dataset.make_env] * args.eval_episodes)
    agent = Agent(dataset, envs.single_action_space, args)

    # A run may go on for more steps, or on another device; all other arguments are those of its checkpoint.
    changeable = {"steps", "device", "out", "wandb"}
    settings = {name: value for name, value in vars(args).items() if name not in changeable}
    settings |= {"program": NAME, "data": dataset.manifest.digest}
    step, seconds, history = 0, 0.0, []
    if state := load_checkpoint(args.out / "checkpoint.pt", settings):
        agent.load_state_dict(state["networks"])
        for name, optimizer in agent.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        sampler.load_state_dict(state["sampler"])
        agent.noise.set_state(state["noise"])
        step, seconds, history = state["step"], state["seconds"], state["history"]
    log = open_log(args, step)

    sys.stderr.write(f"{NAME} on {args.dataset}, from step {step:,} to {args.steps:,}; checkpoints in {args.out}\n")
    while step < args.steps:
        began, losses = time.perf_counter(), {}
        # The run of batches ends with the checkpoint: the sampler is not ahead of it.
        for batch in dataset.batches(min(args.eval_every, args.steps - step), args.batch_size):
            step += 1
            losses.update(agent.update(batch, step))
        seconds += time.perf_counter() - began
        last = {name: loss.item() for name, loss in losses.items()}
        history.append({"step": step, **last, **evaluate(agent, envs, args), "train_seconds": round(seconds, 1)})
        sys.stderr.write("  ".join(f"{name} {value:,.5g}" for name, value in history[-1].items()) + "\n")
        for name, value in history[-1].items() if log else ():
            log.add_scalar(name, value, step)
        checkpoint = {
            "settings": settings,
            "networks": agent.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in agent.optimizers.items()},
            "sampler": sampler.state_dict(),
            "noise": agent.noise.get_state(),
            "step": step,
            "seconds": seconds,
            "history": history,
        }
        torch.save(checkpoint, args.out / "checkpoint.tmp")
        os.replace(args.out / "checkpoint.tmp", args.out / "checkpoint.pt")  # whole or not at all, if it is killed
    envs.close()
    result = {"algorithm": NAME, "dataset": args.dataset, "seed": args.seed, **history[-1]}
    print(json.dumps(result), flush=True)
    return result


if __name__ == "__main__":
    main()
