"""Diffusion Policy: a network that turns noise into the next actions, step by step (Chi et al. 2023, arXiv:2303.04137).

loss = || noise - eps(sqrt(c_k) a + sqrt(1 - c_k) noise, k, o) ||^2          a: H actions, o: the last observations
a_k-1 = sqrt(c_k-1) a_0 + sqrt(1 - c_k-1) eps(a_k, k, o)                     sampling (DDIM), from noise to actions

`WindowTransform.diffusion_policy` reads the windows of the code of the authors, padded at both ends of an episode. Of the H
actions, those of the next ``--execute`` steps are executed before the network is asked again.

    rlds train diffusion_policy --dataset demo/pendulum
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

NAME = "diffusion_policy"
KEYS = ("observation", "action", "next.done")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = argparse.ArgumentParser(NAME, description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--dataset", required=True, metavar="ID", help="such as demo/pendulum or d4rl/pen-human-v1")
    parser.add_argument("--seed", type=int, default=0, help="the default is %(default)s")
    parser.add_argument("--device", default="cpu", help="cpu or cuda: of the network")
    parser.add_argument("--steps", type=int, default=10_000, help="updates; the default is %(default)s")
    parser.add_argument("--eval-every", type=int, default=2_500, metavar="N", help="also saved; default %(default)s")
    parser.add_argument("--eval-episodes", type=int, default=10, metavar="N", help="the default is %(default)s")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="checkpoint and logs; by default runs/NAME/ID/SEED")
    parser.add_argument("--wandb", metavar="PROJECT", help="log to Weights & Biases too")
    parser.add_argument("--batch-size", type=int, default=256, help="the default is %(default)s")
    parser.add_argument("--observe", type=int, default=2, metavar="N", help="observations that the network gets")
    parser.add_argument("--horizon", type=int, default=8, help="actions that it predicts")
    parser.add_argument("--execute", type=int, default=4, metavar="N", help="actions that are executed")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--noise-levels", type=int, default=50, help="in training")
    parser.add_argument("--denoise-steps", type=int, default=10, help="in evaluation")
    parser.add_argument("--lr", type=float, default=1e-3, help="of Adam; the default is %(default)s")
    parser.add_argument("--ema", type=float, default=0.995, help="decay of the averaged network, which acts")
    args = parser.parse_args(argv)
    args.out = args.out or Path("runs", NAME, args.dataset.lstrip("./~"), str(args.seed))
    return args


class Denoiser(nn.Module):
    """A residual network: noisy actions [B, H * A], noise levels [B] and observations [B, F] to the noise [B, H * A]."""

    def __init__(self, actions: int, observations: int, width: int, layers: int) -> None:
        super().__init__()
        self.width = width
        self.first = nn.Linear(actions + observations + width, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Mish(), nn.Linear(width, width))
            for _ in range(layers)
        )
        self.last = nn.Linear(width, actions)

    def forward(self, actions: Tensor, level: Tensor, observations: Tensor) -> Tensor:
        """Return the noise in the actions."""
        rates = torch.exp(-math.log(10_000) * torch.arange(self.width // 2, device=level.device) / (self.width // 2))
        angles = level[:, None] * rates
        hidden = self.first(torch.cat([actions, observations, angles.sin(), angles.cos()], -1))
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.last(hidden)


class Agent(nn.Module):
    """A policy of the last observations, [B, N, O], that returns the next actions, in the units of the environment."""

    kept: Tensor

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        if not isinstance(space, gymnasium.spaces.Box):
            raise SystemExit(f"{NAME} needs continuous actions; those of {args.dataset} are {space}")
        self.args = args
        self.inputs = rl.Normalizer.from_statistics(dataset.statistics["observation"], "limits")
        self.outputs = rl.Normalizer.from_statistics(dataset.statistics["action"], "limits")
        self.shape = (args.horizon, len(self.outputs.shift))
        sizes = (math.prod(self.shape), args.observe * len(self.inputs.shift))
        self.denoiser = Denoiser(*sizes, args.width, args.layers)
        self.average = copy.deepcopy(self.denoiser)
        angles = torch.linspace(0, 1, args.noise_levels + 1) + 0.008  # the squared cosine of Nichol and Dhariwal (2021)
        kept = (angles / 1.008 * math.pi / 2).cos().square()
        self.register_buffer(
            "kept", (kept / kept[0]).clamp(1e-4, 1.0)
        )  # share of the actions in the variance, by level
        self.to(args.device)
        self.noise = torch.Generator(args.device).manual_seed(args.seed)
        self.optimizer = torch.optim.AdamW(self.denoiser.parameters(), args.lr, weight_decay=1e-6, fused=True)

    @torch.no_grad()
    def act(self, observations: Tensor, generator: torch.Generator) -> Tensor:
        """Return the actions of the next steps, [B, T, A], for observations [B, N, O]."""
        given = self.inputs(observations).flatten(1)
        actions = torch.randn(len(given), math.prod(self.shape), generator=generator, device=given.device)
        levels = np.linspace(self.args.noise_levels, 0, self.args.denoise_steps + 1).round().astype(int).tolist()
        for level, following in pairwise(levels):
            noise = self.average(actions, torch.full((len(given),), level, device=given.device), given)
            kept, kept_next = self.kept[level], self.kept[following]
            clean = ((actions - (1 - kept).sqrt() * noise) / kept.sqrt()).clamp(-1, 1)
            noise = (actions - kept.sqrt() * clean) / (1 - kept).sqrt()
            actions = kept_next.sqrt() * clean + (1 - kept_next).sqrt() * noise
        first = self.args.observe - 1  # the action of the last observation
        return self.outputs.denormalize(actions.unflatten(1, self.shape))[:, first : first + self.args.execute]

    def update(self, batch: Any) -> dict[str, Tensor]:
        """Take a step of the network, and of its average; return the loss."""
        given = self.inputs(batch["observation"][:, : self.args.observe]).flatten(1)
        actions = self.outputs(batch["action"]).flatten(1)
        noise = torch.randn(actions.shape, generator=self.noise, device=actions.device)
        options = {"generator": self.noise, "device": actions.device}
        level = torch.randint(1, self.args.noise_levels + 1, (len(given),), **options)
        kept = self.kept[level][:, None]
        noisy = kept.sqrt() * actions + (1 - kept).sqrt() * noise
        loss = functional.mse_loss(self.denoiser(noisy, level, given), noise)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.average.parameters(), self.denoiser.parameters(), strict=True):
                slow.lerp_(fast, 1 - self.args.ema)
        return {"loss": loss}


def evaluate(agent: Agent, envs: Any, args: argparse.Namespace) -> dict[str, float]:
    """Return the mean return of one episode in each environment, and the interquartile mean of the scores, in percent."""
    observations, _ = envs.reset(seed=1_000 * args.seed)
    generator = torch.Generator(args.device).manual_seed(args.seed)
    past = [observations] * args.observe  # as in the padded windows
    returns, running = np.zeros(envs.num_envs), np.ones(envs.num_envs, bool)
    while running.any():
        given = torch.as_tensor(np.stack(past[-args.observe :], 1), dtype=torch.float32, device=args.device)
        for action in agent.act(given, generator).unbind(1):
            observations, rewards, terminated, truncated, _ = envs.step(action.cpu().numpy())
            past.append(observations)
            returns += rewards * running
            running &= ~(terminated | truncated)
    found = {"return": float(returns.mean()), "return_std": float(returns.std())}
    try:
        score = rl.interquartile_mean(rl.normalized_score(args.dataset, returns, percent=True))
    except rl.InvalidArgumentError:  # nobody published reference scores
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
    windows = rl.WindowTransform.diffusion_policy(args.horizon, args.observe - 1, args.execute - 1)
    sampler = windows.sampler(generator=torch.Generator().manual_seed(args.seed))
    transform = rl.Compose(rl.DoubleToFloat(), windows)
    dataset = rl.load(args.dataset, sampler=sampler, transform=transform).show(KEYS)
    envs = gymnasium.vector.SyncVectorEnv([dataset.make_env] * args.eval_episodes)
    agent = Agent(dataset, envs.single_action_space, args)

    # A run may go on for more steps, or on another device; all other arguments are those of its checkpoint.
    changeable = {"steps", "device", "out", "wandb"}
    settings = {name: value for name, value in vars(args).items() if name not in changeable}
    settings |= {"program": NAME, "data": dataset.manifest.digest}
    step, seconds, history = 0, 0.0, []
    if state := load_checkpoint(args.out / "checkpoint.pt", settings):
        agent.load_state_dict(state["networks"])
        agent.optimizer.load_state_dict(state["optimizer"])
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
            losses.update(agent.update(batch.to(args.device)))
        seconds += time.perf_counter() - began
        last = {name: loss.item() for name, loss in losses.items()}
        history.append({"step": step, **last, **evaluate(agent, envs, args), "train_seconds": round(seconds, 1)})
        sys.stderr.write("  ".join(f"{name} {value:,.5g}" for name, value in history[-1].items()) + "\n")
        for name, value in history[-1].items() if log else ():
            log.add_scalar(name, value, step)
        checkpoint = {
            "settings": settings,
            "networks": agent.state_dict(),
            "optimizer": agent.optimizer.state_dict(),
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
