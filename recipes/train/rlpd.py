"""RLPD: a dataset makes online learning faster (Ball et al. 2023, arXiv:2302.02948).

Soft actor-critic with several normalized critics. Half of each batch is from the dataset, half from the new experience.

    rlds train rlpd --dataset demo/pendulum
    rlds train rlpd --dataset demo/pendulum --offline-fraction 0        # the same program without the dataset
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
from tensordict import TensorDict
from torch import Tensor, nn
from torch.nn import functional

import datasets_rl as rl

NAME = "rlpd"
KEYS = ("observation", "action", "next.observation", "next.reward", "next.terminated", "next.done")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = argparse.ArgumentParser(NAME, description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--dataset", required=True, metavar="ID", help="such as demo/pendulum or d4rl/hopper-medium-v2")
    parser.add_argument("--seed", type=int, default=0, help="the default is %(default)s")
    parser.add_argument("--device", default="cpu", help="cpu or cuda: of the networks")
    parser.add_argument("--steps", type=int, default=4_000, help="in whole episodes; default %(default)s")
    parser.add_argument("--eval-every", type=int, default=1_000, metavar="N", help="also saved; default %(default)s")
    parser.add_argument("--eval-episodes", type=int, default=10, metavar="N", help="the default is %(default)s")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="checkpoint and logs; by default runs/NAME/ID/SEED")
    parser.add_argument("--wandb", metavar="PROJECT", help="log to Weights & Biases too")
    parser.add_argument("--offline-fraction", type=float, default=0.5, help="of a batch; the default is %(default)s")
    parser.add_argument("--start", type=int, default=200, metavar="STEPS", help="steps before the first update")
    parser.add_argument("--updates", type=int, default=1, help="for each step of the environment")
    parser.add_argument("--critics", type=int, default=4, help="of which two make a target; the default is %(default)s")
    parser.add_argument("--batch-size", type=int, default=128, help="of one update")
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 128], metavar="WIDTH")
    parser.add_argument("--lr", type=float, default=1e-3, help="of Adam; the default is %(default)s")
    parser.add_argument("--discount", type=float, default=0.99, help="the default is %(default)s")
    args = parser.parse_args(argv)
    args.out = args.out or Path("runs", NAME, args.dataset.lstrip("./~"), str(args.seed))
    return args


def make_mlp(*widths: int) -> nn.Sequential:
    """Return linear layers with a normalization, which keeps values of new actions low, and a ReLU between each two."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.LayerNorm(after), nn.ReLU()]
    return nn.Sequential(*layers[:-2])


class Agent(nn.Module):
    """A stochastic policy with the units of the environment, its critics, and the weight of its entropy."""

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        if not isinstance(space, gymnasium.spaces.Box):
            raise SystemExit(f"{NAME} needs continuous actions; those of {args.dataset} are {space}")
        self.args = args
        self.inputs = rl.Normalizer.from_statistics(dataset.statistics["observation"])
        low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
        self.outputs = rl.Normalizer((low + high) / 2, (high - low) / 2)
        states, actions = len(self.inputs.shift), len(low)
        reward = dataset.statistics["next.reward"]
        self.scale = 1 / max(1e-6, np.max(reward["max"]), -np.min(reward["min"]))  # rewards of at most 1
        self.actor = make_mlp(states, *args.hidden, 2 * actions)
        self.critics = nn.ModuleList(make_mlp(states + actions, *args.hidden, 1) for _ in range(args.critics))
        self.target_critics = copy.deepcopy(self.critics)
        self.log_alpha = nn.Parameter(torch.tensor(-2.0))
        self.to(args.device)
        self.optimizers = {
            "actor": torch.optim.Adam([*self.actor.parameters(), self.log_alpha], args.lr, fused=True),
            "critics": torch.optim.Adam(self.critics.parameters(), args.lr, fused=True),
        }

    def draw(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions in (-1, 1), [B, A], and their log-probabilities, [B, 1], for normalized states."""
        mean, log_std = self.actor(states).chunk(2, -1)
        raw = (normal := torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())).rsample()
        squashed = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))  # log (1 - tanh(raw)^2)
        return raw.tanh(), (normal.log_prob(raw) - squashed).sum(-1, keepdim=True)

    @torch.no_grad()
    def act(self, observation: Tensor, *, explore: bool = False) -> Tensor:
        """Return the mean actions [B, A] for observations [B, O], or random ones, in the units of the environment."""
        state = self.inputs(observation)
        return self.outputs.denormalize(self.draw(state)[0] if explore else self.actor(state).chunk(2, -1)[0].tanh())

    def update(self, batch: Any) -> dict[str, Tensor]:
        """Take a step of the critics, of the actor and of the weight of the entropy; return the losses."""
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
        with torch.no_grad():
            for slow, fast in zip(self.target_critics.parameters(), self.critics.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
        action, log_probability = self.draw(state)
        values = torch.stack([critic(torch.cat([state, action], -1)) for critic in self.critics])
        losses["actor"] = (alpha * log_probability - values.mean(0)).mean()
        losses["alpha"] = self.log_alpha * (action.shape[-1] - log_probability.detach().mean())  # entropy above -A
        self.descend("actor", losses["actor"] + losses["alpha"])
        return losses

    def descend(self, name: str, loss: Tensor) -> None:
        """Take a step of one optimizer."""
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()


def collect(agent: Agent, env: Any, observation: Any) -> TensorDict:
    """Take a step of the environment; return the transition, [1], with the keys and dtypes of the dataset."""
    state = torch.as_tensor(observation, dtype=torch.float32)[None]
    action = agent.act(state.to(agent.args.device), explore=True).cpu()
    following, reward, terminated, truncated, _ = env.step(action[0].numpy())
    flags = {"terminated": [[bool(terminated)]], "done": [[bool(terminated or truncated)]]}
    after = {"observation": following[None].astype(np.float32), "reward": [[float(reward)]], **flags}
    return TensorDict({"observation": state, "action": action, "next": TensorDict(after, [1])}, [1])


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
    dataset = rl.load(args.dataset, transform=rl.DoubleToFloat(), final_unknown="drop").show(KEYS)
    rb = rl.OfflineToOnlineReplayBuffer(dataset, online_capacity=args.steps + 10_000, interleave=True, missing="drop")
    rb.offline_fraction = args.offline_fraction
    env = dataset.make_env()
    envs = gymnasium.vector.SyncVectorEnv([dataset.make_env] * args.eval_episodes)
    agent = Agent(dataset, env.action_space, args)

    # A run may go on for more steps, or on another device; all other arguments are those of its checkpoint.
    changeable = {"steps", "device", "out", "wandb"}
    settings = {name: value for name, value in vars(args).items() if name not in changeable}
    settings |= {"program": NAME, "data": dataset.manifest.digest}
    step, episode, seconds, history = 0, 0, 0.0, []
    if state := load_checkpoint(args.out / "checkpoint.pt", settings):
        agent.load_state_dict(state["networks"])
        for name, optimizer in agent.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        rb.load_state_dict(state["buffer"])
        torch.set_rng_state(state["random"][0])
        torch.cuda.set_rng_state_all(state["random"][1:])
        step, episode, seconds, history = (state[name] for name in ("step", "episode", "seconds", "history"))
    log = open_log(args, step)

    sys.stderr.write(f"{NAME} on {args.dataset}, from step {step:,} to {args.steps:,}; checkpoints in {args.out}\n")
    while step < args.steps:
        began, losses, limit = time.perf_counter(), {}, step + args.eval_every
        while step < min(limit, args.steps):
            observation, ended, episode = env.reset(seed=100_000 * args.seed + episode)[0], False, episode + 1
            while not ended:
                rb.extend(transition := collect(agent, env, observation))
                observation, ended = transition["next", "observation"][0], bool(transition["next", "done"])
                step += 1
                if step > args.start:
                    batches = rb.sample(args.updates * args.batch_size).to(args.device)
                    losses.update([agent.update(batch) for batch in batches.split(args.batch_size)][-1])
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
            "buffer": rb.state_dict(),
            "random": [torch.get_rng_state(), *torch.cuda.get_rng_state_all()],
            "step": step,
            "episode": episode,
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
