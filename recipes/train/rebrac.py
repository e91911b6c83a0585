"""ReBRAC: TD3+BC with penalties of the actor and of the critics, layer norms and depth (Tarasov et al. 2023, arXiv:2305.09836).

actor   = min  actor_penalty (pi(s) - a)^2 - min Q(s, pi(s)) / mean |Q|
critics = min  (Q(s, a) - r - gamma (min Q'(s', p) - critic_penalty (p - a')^2))^2        p = pi'(s') + noise

a' is the next action in the data: a window of two actions has both.

    rlds train rebrac --dataset demo/pendulum
"""

from __future__ import annotations

import argparse
import copy
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

NAME = "rebrac"
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
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256, 256], metavar="WIDTH")
    parser.add_argument("--lr", type=float, default=1e-3, help="of Adam; the default is %(default)s")
    parser.add_argument("--discount", type=float, default=0.99, help="the default is %(default)s")
    parser.add_argument("--tau", type=float, default=0.005, help="share of the networks in an update of the targets")
    parser.add_argument("--actor-penalty", type=float, default=0.1, help="weight of imitation; the paper tunes it")
    parser.add_argument("--critic-penalty", type=float, default=0.01, help="the same in the targets of the critics")
    parser.add_argument("--policy-noise", type=float, default=0.2, help="noise of target actions, in [-1, 1]")
    parser.add_argument("--noise-clip", type=float, default=0.5)
    parser.add_argument("--policy-every", type=int, default=2, help="updates of the critics for one of the actor")
    args = parser.parse_args(argv)
    args.out = args.out or Path("runs", NAME, args.dataset.lstrip("./~"), str(args.seed))
    return args


def make_mlp(*widths: int, norm: bool = False) -> nn.Sequential:
    """Return linear layers with a ReLU, and a layer norm if asked for, between each two."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU(), *([nn.LayerNorm(after)] if norm else [])]
    return nn.Sequential(*layers[: -2 if norm else -1])


class Agent(nn.Module):
    """A policy with the units of the environment, and two critics, for states [B, O] and actions [B, A]."""

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        if not isinstance(space, gymnasium.spaces.Box):
            raise SystemExit(f"{NAME} needs continuous actions; those of {args.dataset} are {space}")
        low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
        self.args = args
        self.inputs = rl.Normalizer.from_statistics(dataset.statistics["observation"])
        self.outputs = rl.Normalizer((low + high) / 2, (high - low) / 2)
        states, actions = len(self.inputs.shift), len(low)
        self.actor = nn.Sequential(make_mlp(states, *args.hidden, actions), nn.Tanh())
        self.critics = nn.ModuleList(make_mlp(states + actions, *args.hidden, 1, norm=True) for _ in range(2))
        self.target_actor, self.target_critics = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.to(args.device)
        self.noise = torch.Generator(args.device).manual_seed(args.seed)
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
        noise = torch.randn(next_action.shape, generator=self.noise, device=state.device) * self.args.policy_noise
        chosen = (self.target_actor(state) + noise.clamp(-self.args.noise_clip, self.args.noise_clip)).clamp(-1, 1)
        value = torch.minimum(*(critic(torch.cat([state, chosen], -1)) for critic in self.target_critics))
        value -= self.args.critic_penalty * (chosen - next_action).square().sum(-1, keepdim=True)
        return batch["next", "reward"] + self.args.discount * ~batch["next", "terminated"] * value

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the critics, and of the actor in every second one; return the losses."""
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
            self.follow(self.target_actor, self.actor)
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
    transform = [rl.WindowTransform({"action": (0, 1)}, pad="repeat"), rl.DoubleToFloat()]
    dataset = rl.load(args.dataset, sampler=sampler, transform=transform, final_unknown="drop").show(KEYS)
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
