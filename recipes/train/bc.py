"""Behavior cloning (BC): a policy that predicts the actions of the data; for continuous and for discrete actions.

loss = mean (pi(s) - a)^2            continuous actions, scaled to [-1, 1]
loss = mean -log pi(a | s)           discrete actions

The baseline of every offline method. On the best tenth of the episodes it is 10%BC: give the id of the dataset that
`rlds preprocess ID --recipe top_10_percent` writes.

    rlds train bc --dataset demo/pendulum
"""

from __future__ import annotations

import argparse
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

NAME = "bc"
KEYS = ("observation", "action")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = argparse.ArgumentParser(NAME, description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--dataset", required=True, metavar="ID", help="such as demo/pendulum or d4rl/hopper-medium-v2")
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
    """A policy with the units of the environment: observations [B, O] to actions [B, A], or to choices [B]."""

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        self.inputs = rl.Normalizer.from_statistics(dataset.statistics["observation"])
        self.discrete = isinstance(space, gymnasium.spaces.Discrete)
        if not self.discrete:
            low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
            self.outputs = rl.Normalizer((low + high) / 2, (high - low) / 2)
        outputs = int(space.n) if self.discrete else len(low)
        self.actor = make_mlp(len(self.inputs.shift), *args.hidden, outputs)
        self.to(args.device)
        self.noise = torch.Generator(args.device)  # of programs that draw noise; here it is not used
        self.optimizers = {"actor": torch.optim.Adam(self.actor.parameters(), args.lr, fused=True)}

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Return the best actions for observations [B, O], in the units of the environment."""
        output = self.actor(self.inputs(observation))
        return output.argmax(-1) if self.discrete else self.outputs.denormalize(output.tanh())

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the policy; return its loss."""
        del step
        output, action = self.actor(self.inputs(batch["observation"])), batch["action"]
        if self.discrete:
            loss = functional.cross_entropy(output, action.flatten())
        else:
            loss = functional.mse_loss(output.tanh(), self.outputs(action))
        self.descend("actor", loss)
        return {"actor": loss}

    def descend(self, name: str, loss: Tensor) -> None:
        """Take a step of one optimizer."""
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()


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
    dataset = rl.load(args.dataset, sampler=sampler, transform=rl.DoubleToFloat()).show(KEYS)
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
