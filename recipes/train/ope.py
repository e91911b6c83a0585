"""OPE: the value of a trained policy from the data alone, by fitted Q evaluation (FQE; Le et al. 2019, arXiv:1903.08738).

Q = min  (Q(s, a) - r - gamma Q'(s', pi(s')))^2          value of the policy = mean Q(s_0, pi(s_0)) of the episodes

``--policy`` is a checkpoint of bc, td3_bc, iql, cql or rebrac. The estimate is compared with the discounted return in the
environment. Time-outs do not end the value: rewards after them count, too.

    rlds train iql --dataset demo/pendulum --out runs/iql
    rlds train ope --dataset demo/pendulum --policy runs/iql/checkpoint.pt
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
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

NAME = "ope"
KEYS = ("observation", "action", "next.observation", "next.reward", "next.terminated")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = argparse.ArgumentParser(NAME, description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--dataset", required=True, metavar="ID", help="such as demo/pendulum or d4rl/hopper-medium-v2")
    parser.add_argument("--policy", required=True, metavar="FILE", help="the checkpoint of the policy")
    parser.add_argument(
        "--algorithm", metavar="NAME", help="the program of the policy; by default the checkpoint says it"
    )
    parser.add_argument("--seed", type=int, default=0, help="the default is %(default)s")
    parser.add_argument("--device", default="cpu", help="cpu or cuda: of the networks, and of the data")
    parser.add_argument("--steps", type=int, default=20_000, help="updates; the default is %(default)s")
    parser.add_argument("--eval-every", type=int, default=5_000, metavar="N", help="also saved; default %(default)s")
    parser.add_argument("--eval-episodes", type=int, default=10, metavar="N", help="the default is %(default)s")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="checkpoint and logs; by default runs/NAME/ID/SEED")
    parser.add_argument("--wandb", metavar="PROJECT", help="log to Weights & Biases too")
    parser.add_argument("--batch-size", type=int, default=256, help="the default is %(default)s")
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256], metavar="WIDTH")
    parser.add_argument("--lr", type=float, default=3e-4, help="of Adam; the default is %(default)s")
    parser.add_argument("--discount", type=float, default=0.99, help="the default is %(default)s")
    parser.add_argument("--tau", type=float, default=0.005, help="share of the network in an update of the target")
    args = parser.parse_args(argv)
    args.out = args.out or Path("runs", NAME, args.dataset.lstrip("./~"), str(args.seed))
    return args


def load_policy(dataset: Any, space: Any, args: argparse.Namespace) -> Any:
    """Return the agent of another program from its checkpoint; its `act` is the policy."""
    state = torch.load(args.policy, map_location="cpu", weights_only=True)
    settings = state["settings"]
    program = importlib.import_module(f"datasets_rl.recipes.train.{args.algorithm or settings['program']}")
    agent = program.Agent(dataset, space, argparse.Namespace(**settings, device=args.device))
    agent.load_state_dict(state["networks"])
    return agent.requires_grad_(requires_grad=False)


def make_mlp(*widths: int) -> nn.Sequential:
    """Return linear layers with a normalization and a ReLU between each two."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.LayerNorm(after), nn.ReLU()]
    return nn.Sequential(*layers[:-2])


class Agent(nn.Module):
    """The value of a policy: observations [B, O] and actions [B, A] in the units of the environment to values [B, 1]."""

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        if not isinstance(space, gymnasium.spaces.Box):
            raise SystemExit(f"{NAME} needs continuous actions; those of {args.dataset} are {space}")
        low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
        self.args = args
        self.inputs = rl.Normalizer.from_statistics(dataset.statistics["observation"])
        self.outputs = rl.Normalizer((low + high) / 2, (high - low) / 2)
        rewards = dataset.statistics["next.reward"]
        # Targets of the size of one reward: the scale of values is then at most 1 / (1 - discount).
        self.scale = max(abs(float(np.min(rewards["min"]))), abs(float(np.max(rewards["max"])))) or 1.0
        self.critic = make_mlp(len(self.inputs.shift) + len(low), *args.hidden, 1)
        self.target_critic = copy.deepcopy(self.critic)
        self.to(args.device)
        self.optimizer = torch.optim.Adam(self.critic.parameters(), args.lr, fused=True)

    def value(self, critic: nn.Module, observation: Tensor, action: Tensor) -> Tensor:
        """Return the values of actions, [B, 1], in units of the scale."""
        return critic(torch.cat([self.inputs(observation), self.outputs(action)], -1))

    def update(self, batch: Any, policy: Any) -> dict[str, Tensor]:
        """Take a step of the value; return the loss."""
        following = batch["next", "observation"]
        with torch.no_grad():
            alive = self.args.discount * ~batch["next", "terminated"]
            next_value = self.value(self.target_critic, following, policy.act(following))
            target = batch["next", "reward"] / self.scale + alive * next_value
        loss = functional.mse_loss(self.value(self.critic, batch["observation"], batch["action"]), target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target_critic.parameters(), self.critic.parameters(), strict=True):
                slow.lerp_(fast, self.args.tau)
        return {"loss": loss}

    @torch.no_grad()
    def estimate(self, first: Tensor, policy: Any) -> dict[str, float]:
        """Return the value of the policy in the first states [E, O], and its 95% interval over the episodes."""
        values = self.scale * self.value(self.critic, first, policy.act(first)).flatten().cpu().double().numpy()
        draws = np.random.default_rng(0).choice(values, (2_000, len(values))).mean(1)
        low, high = np.quantile(draws, [0.025, 0.975])
        return {"estimate": float(values.mean()), "estimate_low": float(low), "estimate_high": float(high)}


def evaluate(policy: Any, envs: Any, args: argparse.Namespace) -> dict[str, float]:
    """Return the mean return of the policy in the environment, with and without discount."""
    observations, _ = envs.reset(seed=1_000 * args.seed)
    returns, discounted, running = np.zeros(envs.num_envs), np.zeros(envs.num_envs), np.ones(envs.num_envs, bool)
    factor = 1.0
    while running.any():
        actions = policy.act(torch.as_tensor(observations, dtype=torch.float32, device=args.device))
        observations, rewards, terminated, truncated, _ = envs.step(actions.cpu().numpy())
        returns += rewards * running
        discounted += factor * rewards * running
        factor *= args.discount
        running &= ~(terminated | truncated)
    return {"return": float(returns.mean()), "discounted_return": float(discounted.mean())}


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
    policy = load_policy(dataset, envs.single_action_space, args)
    starts = torch.from_numpy(dataset.episodes.starts.copy())
    first = dataset.sample(rows=starts.to(args.device))["observation"]
    measured = evaluate(policy, envs, args)

    # A run may go on for more steps, or on another device; all other arguments are those of its checkpoint.
    changeable = {"steps", "device", "out", "wandb"}
    settings = {name: value for name, value in vars(args).items() if name not in changeable}
    settings |= {"program": NAME, "data": dataset.manifest.digest}
    step, seconds, history = 0, 0.0, []
    if state := load_checkpoint(args.out / "checkpoint.pt", settings):
        agent.load_state_dict(state["networks"])
        agent.optimizer.load_state_dict(state["optimizer"])
        sampler.load_state_dict(state["sampler"])
        step, seconds, history = state["step"], state["seconds"], state["history"]
    log = open_log(args, step)

    sys.stderr.write(f"{NAME} on {args.dataset}, from step {step:,} to {args.steps:,}; checkpoints in {args.out}\n")
    while step < args.steps:
        began, losses = time.perf_counter(), {}
        # The run of batches ends with the checkpoint: the sampler is not ahead of it.
        for batch in dataset.batches(min(args.eval_every, args.steps - step), args.batch_size):
            step += 1
            losses.update(agent.update(batch, policy))
        seconds += time.perf_counter() - began
        last = {name: loss.item() for name, loss in losses.items()}
        history.append(
            {"step": step, **last, **agent.estimate(first, policy), **measured, "train_seconds": round(seconds, 1)}
        )
        sys.stderr.write("  ".join(f"{name} {value:,.5g}" for name, value in history[-1].items()) + "\n")
        for name, value in history[-1].items() if log else ():
            log.add_scalar(name, value, step)
        checkpoint = {
            "settings": settings,
            "networks": agent.state_dict(),
            "optimizer": agent.optimizer.state_dict(),
            "sampler": sampler.state_dict(),
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
