"""GC-IQL: a policy that reaches given states (implicit Q-learning, arXiv:2110.06169, with the goals of OGBench).

critics = min  (Q(s, a, g) - r - gamma m V(s', g))^2         r = -1, m = 1; where s is the goal g, r = 0, m = 0
value   = min  |tau - 1(u < 0)| u^2                          u = min Q'(s, a, g) - V(s, g), tau = the expectile
actor   = min  exp(beta (Q'(s, a, g) - V(s, g))) (pi(s, g) - a)^2

`GoalSampler` draws the goals from the trajectories of the dataset, whose rewards are not read. With ``--beta 0`` all actions
have the same weight, which is goal-conditioned behavior cloning.

    python -m datasets_rl.recipes.train.point_maze --dataset local/point-maze
    rlds train gc_iql --dataset local/point-maze
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
import torch
from torch import Tensor, nn
from torch.nn import functional

import datasets_rl as rl
import datasets_rl.recipes.train.point_maze  # which registers the maze

NAME = "gc_iql"
KEYS = ("observation", "action", "next.observation")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = argparse.ArgumentParser(NAME, description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--dataset", required=True, metavar="ID", help="such as local/point-maze")
    parser.add_argument("--seed", type=int, default=0, help="the default is %(default)s")
    parser.add_argument("--device", default="cpu", help="cpu or cuda: of the networks")
    parser.add_argument("--steps", type=int, default=3_000, help="updates; the default is %(default)s")
    parser.add_argument("--eval-every", type=int, default=1_000, metavar="N", help="also saved; default %(default)s")
    parser.add_argument("--eval-episodes", type=int, default=4, metavar="N", help="of each task")
    parser.add_argument("--tasks", type=int, default=5, help="tasks of the environment; the default is %(default)s")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="checkpoint and logs; by default runs/NAME/ID/SEED")
    parser.add_argument("--wandb", metavar="PROJECT", help="log to Weights & Biases too")
    parser.add_argument("--batch-size", type=int, default=128, help="the default is %(default)s")
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 128], metavar="WIDTH")
    parser.add_argument("--lr", type=float, default=1e-3, help="of Adam; the default is %(default)s")
    parser.add_argument("--discount", type=float, default=0.98)
    parser.add_argument("--tau", type=float, default=0.02, help="share of the networks in an update of the targets")
    parser.add_argument("--expectile", type=float, default=0.9, help="0.5 is the mean, 1 the best action of the data")
    parser.add_argument("--beta", type=float, default=3.0, help="weight of the advantages; 0 is behavior cloning")
    args = parser.parse_args(argv)
    args.out = args.out or Path("runs", NAME, args.dataset.lstrip("./~"), str(args.seed))
    return args


def make_mlp(*widths: int) -> nn.Sequential:
    """Return linear layers with a normalization and a GELU between each two."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.LayerNorm(after), nn.GELU()]
    return nn.Sequential(*layers[:-2])


class Agent(nn.Module):
    """A policy with the units of the environment, two critics and a value, of states and goals, [B, O] each."""

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        if not isinstance(space, gymnasium.spaces.Box):
            raise SystemExit(f"{NAME} needs continuous actions; those of {args.dataset} are {space}")
        low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
        self.args = args
        self.inputs = rl.Normalizer.from_statistics(dataset.statistics["observation"])
        self.outputs = rl.Normalizer((low + high) / 2, (high - low) / 2)
        states, actions = 2 * len(self.inputs.shift), len(low)
        self.actor = nn.Sequential(make_mlp(states, *args.hidden, actions), nn.Tanh())
        self.value = make_mlp(states, *args.hidden, 1)
        self.critics = nn.ModuleList(make_mlp(states + actions, *args.hidden, 1) for _ in range(2))
        self.target_critics = copy.deepcopy(self.critics)
        self.to(args.device)
        self.optimizers = {
            "actor": torch.optim.Adam(self.actor.parameters(), args.lr, fused=True),
            "value": torch.optim.Adam(self.value.parameters(), args.lr, fused=True),
            "critics": torch.optim.Adam(self.critics.parameters(), args.lr, fused=True),
        }

    @torch.no_grad()
    def act(self, state: Tensor, goal: Tensor) -> Tensor:
        """Return the actions [B, A] that lead from states to goals, in the units of the environment."""
        return self.outputs.denormalize(self.actor(self.pair(state, goal)))

    def pair(self, state: Tensor, goal: Tensor) -> Tensor:
        """Return normalized states and goals side by side, [B, 2 * O]."""
        return torch.cat([self.inputs(state), self.inputs(goal)], -1)

    @torch.no_grad()
    def worth(self, pair: Tensor, action: Tensor) -> Tensor:
        """Return the lower value of both target critics, [B, 1]."""
        return torch.minimum(*(critic(torch.cat([pair, action], -1)) for critic in self.target_critics))

    def update(self, batch: Any) -> dict[str, Tensor]:
        """Take a step of the value, of the critics and of the actor; return the losses."""
        action = self.outputs(batch["action"])
        pair = self.pair(batch["observation"], batch["value_goal"])
        with torch.no_grad():
            next_value = self.value(self.pair(batch["next", "observation"], batch["value_goal"]))
            target = batch["reward"] + self.args.discount * batch["mask"] * next_value
        advantage = self.worth(pair, action) - self.value(pair)
        weight = torch.where(advantage < 0, 1 - self.args.expectile, self.args.expectile)
        losses = {"value": (weight * advantage.square()).mean()}
        self.descend("value", losses["value"])
        inputs = torch.cat([pair, action], -1)
        losses["critics"] = sum(functional.mse_loss(critic(inputs), target) for critic in self.critics)
        self.descend("critics", losses["critics"])
        self.follow(self.target_critics, self.critics)
        pair = self.pair(batch["observation"], batch["actor_goal"])
        with torch.no_grad():
            advantage = self.worth(pair, action) - self.value(pair)
            weight = (self.args.beta * advantage).exp().clamp(max=100)
        losses["actor"] = (weight * (self.actor(pair) - action).square()).mean()
        self.descend("actor", losses["actor"])
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


def evaluate(agent: Agent, env: Any, args: argparse.Namespace) -> dict[str, float]:
    """Return the share of episodes that reach their goal, and in percent with its 95% interval (Wilson 1927).

    As in OGBench, the option "task_id" selects start and goal, and the infos have the goal and whether it is reached.
    """
    reached, count, z = 0, args.tasks * args.eval_episodes, 1.96
    for episode in range(count):
        observation, info = env.reset(seed=1_000 * args.seed + episode, options={"task_id": episode % args.tasks + 1})
        ended = False
        while not ended:
            pair = [torch.as_tensor(value, dtype=torch.float32)[None] for value in (observation, info["goal"])]
            action = agent.act(*(value.to(args.device) for value in pair))
            observation, _, terminated, truncated, info = env.step(action[0].cpu().numpy())
            ended = terminated or truncated
        reached += bool(info["success"])
    share = reached / count
    middle, width = share + z**2 / (2 * count), z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    low, high = (100 * (middle + sign * width) / (1 + z**2 / count) for sign in (-1, 1))
    return {"return": share, "score": 100 * share, "score_low": low, "score_high": high}


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
    generator = torch.Generator().manual_seed(args.seed)
    sampler = rl.GoalSampler(geometric=args.discount, actor_geometric=args.discount, generator=generator)
    dataset = rl.load(args.dataset, sampler=sampler, transform=rl.DoubleToFloat(), final_unknown="drop").show(KEYS)
    env = dataset.make_env()
    if "goal" not in env.reset()[1]:
        raise SystemExit(
            f"{NAME} needs an environment with goals, as those of OGBench; that of {args.dataset} has none"
        )
    agent = Agent(dataset, env.action_space, args)

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
        step, seconds, history = state["step"], state["seconds"], state["history"]
    log = open_log(args, step)

    sys.stderr.write(f"{NAME} on {args.dataset}, from step {step:,} to {args.steps:,}; checkpoints in {args.out}\n")
    while step < args.steps:
        began, losses = time.perf_counter(), {}
        # The run of batches ends with the checkpoint: the sampler is not ahead of it.
        for batch in dataset.batches(min(args.eval_every, args.steps - step), args.batch_size):
            step += 1
            losses.update(agent.update(batch.to(args.device)))
        seconds += time.perf_counter() - began
        last = {name: loss.item() for name, loss in losses.items()}
        history.append({"step": step, **last, **evaluate(agent, env, args), "train_seconds": round(seconds, 1)})
        sys.stderr.write("  ".join(f"{name} {value:,.5g}" for name, value in history[-1].items()) + "\n")
        for name, value in history[-1].items() if log else ():
            log.add_scalar(name, value, step)
        checkpoint = {
            "settings": settings,
            "networks": agent.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in agent.optimizers.items()},
            "sampler": sampler.state_dict(),
            "step": step,
            "seconds": seconds,
            "history": history,
        }
        torch.save(checkpoint, args.out / "checkpoint.tmp")
        os.replace(args.out / "checkpoint.tmp", args.out / "checkpoint.pt")  # whole or not at all, if it is killed
    env.close()
    result = {"algorithm": NAME, "dataset": args.dataset, "seed": args.seed, **history[-1]}
    print(json.dumps(result), flush=True)
    return result


if __name__ == "__main__":
    main()
