"""Decision Transformer: actions from the last steps and the wanted return (Chen et al. 2021, arXiv:2106.01345).

R_1, s_1, a_1, R_2, s_2, a_2, ... R_K, s_K  ->  a_K          R_t: the rewards from step t to the end of the episode
loss = mean (prediction - a)^2 of the K steps of a sequence, without its padding

`SequenceTransform.dt_corl` makes the sequences of CORL's `SequenceDataset` with the returns to go of whole episodes. In
the environment, the first return to go is ``--target``, and every reward is subtracted from it. By default it is the return of
an expert, with the score 100, as in the paper; without a score, the highest return of the dataset.

    rlds train dt --dataset demo/pendulum
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import datasets_rl as rl

NAME = "dt"
KEYS = ("observation", "action", "next.reward", "next.done")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = argparse.ArgumentParser(NAME, description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--dataset", required=True, metavar="ID", help="such as demo/pendulum or d4rl/hopper-medium-v2")
    parser.add_argument("--seed", type=int, default=0, help="the default is %(default)s")
    parser.add_argument("--device", default="cpu", help="cpu or cuda: of the network")
    parser.add_argument("--steps", type=int, default=5_000, help="updates; the default is %(default)s")
    parser.add_argument("--eval-every", type=int, default=1_000, metavar="N", help="also saved; default %(default)s")
    parser.add_argument("--eval-episodes", type=int, default=10, metavar="N", help="the default is %(default)s")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="checkpoint and logs; by default runs/NAME/ID/SEED")
    parser.add_argument("--wandb", metavar="PROJECT", help="log to Weights & Biases too")
    parser.add_argument("--target", type=float, metavar="RETURN", help="by default that of the score 100")
    parser.add_argument("--length", type=int, default=20, help="steps of a sequence; the default is %(default)s")
    parser.add_argument("--batch-size", type=int, default=64, help="the default is %(default)s")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=1e-3, help="of Adam; the default is %(default)s")
    args = parser.parse_args(argv)
    args.out = args.out or Path("runs", NAME, args.dataset.lstrip("./~"), str(args.seed))
    return args


class Block(nn.Module):
    """Self-attention to earlier tokens, and two layers for each token; tokens are [B, T, W]."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens that know the earlier ones."""
        parts = self.inputs(self.before_attention(tokens)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)
        tokens = tokens + functional.dropout(self.outputs(found), self.dropout, self.training)
        return tokens + functional.dropout(self.mlp(self.before_mlp(tokens)), self.dropout, self.training)


class Agent(nn.Module):
    """A policy of sequences, [B, K, ...], with continuous actions; inputs and outputs of the network are normalized."""

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        if not isinstance(space, gymnasium.spaces.Box):
            raise SystemExit(f"{NAME} needs continuous actions; those of {args.dataset} are {space}")
        self.inputs = rl.Normalizer.from_statistics(dataset.statistics["observation"])
        low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
        self.outputs = rl.Normalizer((low + high) / 2, (high - low) / 2)
        self.embed_return = nn.Linear(1, args.width)
        self.embed_state = nn.Linear(len(self.inputs.shift), args.width)
        self.embed_action = nn.Linear(len(low), args.width)
        self.embed_time = nn.Embedding(int(max(dataset.episodes.lengths)) + args.length, args.width)
        self.blocks = nn.Sequential(*(Block(args.width, args.heads, args.dropout) for _ in range(args.layers)))
        self.head = nn.Sequential(nn.LayerNorm(args.width), nn.Linear(args.width, len(low)), nn.Tanh())
        returns = dataset.statistics["return"]
        self.scale = 1 / max(abs(returns["min"]), abs(returns["max"]), 1e-6)  # of returns, to at most 1
        best = dataset.manifest.score.get("high", returns["max"])
        self.target = best if args.target is None else args.target
        self.to(args.device)
        self.optimizer = torch.optim.AdamW(self.parameters(), args.lr, weight_decay=1e-4, fused=True)

    def forward(self, returns: Tensor, states: Tensor, actions: Tensor, times: Tensor) -> Tensor:
        """Return the normalized action of each step, [B, K, A], from normalized states and actions up to that step."""
        time_tokens = self.embed_time(times.clamp(max=self.embed_time.num_embeddings - 1))
        tokens = [self.embed_return(returns), self.embed_state(states), self.embed_action(actions)]
        mixed = torch.stack([token + time_tokens for token in tokens], 2).flatten(1, 2)  # R_1, s_1, a_1, R_2, ...
        return self.head(self.blocks(mixed)[:, 1::3])  # at the tokens of the states

    @torch.no_grad()
    def act(self, *past: Tensor) -> Tensor:
        """Return the normalized actions of the last step, [B, A], for sequences up to it."""
        return self.eval()(*past)[:, -1]

    def update(self, batch: Any) -> dict[str, Tensor]:
        """Take a step of the transformer; return the loss."""
        actions = self.outputs(batch["action"])
        predicted = self.train()(batch["returns_to_go"], batch["observation"], actions, batch["timesteps"])
        loss = functional.mse_loss(predicted[batch["mask"]], actions[batch["mask"]])
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters(), 0.25)
        self.optimizer.step()
        return {"loss": loss}


def evaluate(agent: Agent, envs: Any, args: argparse.Namespace) -> dict[str, float]:
    """Return the mean return of one episode in each environment, and the interquartile mean of the scores, in percent."""
    observations, _ = envs.reset(seed=1_000 * args.seed)
    returns, running, step = np.zeros(envs.num_envs), np.ones(envs.num_envs, bool), 0
    sizes = (1, len(agent.inputs.shift), len(agent.outputs.shift))
    past = [torch.zeros(envs.num_envs, 0, size, device=args.device) for size in sizes]
    while running.any():
        to_go = torch.as_tensor((agent.target - returns) * agent.scale, dtype=torch.float32, device=args.device)[
            :, None
        ]
        state = agent.inputs(torch.as_tensor(observations, dtype=torch.float32, device=args.device))
        new = (to_go, state, state.new_zeros(len(state), sizes[2]))
        past = [torch.cat([old, now[:, None]], 1)[:, -args.length :] for old, now in zip(past, new, strict=True)]
        times = torch.arange(max(0, step + 1 - args.length), step + 1, device=args.device).expand(len(state), -1)
        past[2][:, -1] = agent.act(*past, times)
        observations, rewards, terminated, truncated, _ = envs.step(
            agent.outputs.denormalize(past[2][:, -1]).cpu().numpy()
        )
        returns, running, step = returns + rewards * running, running & ~(terminated | truncated), step + 1
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
    sampler = rl.RandomSampler(generator=torch.Generator().manual_seed(args.seed))
    dataset = rl.load(args.dataset, sampler=sampler, transform=rl.DoubleToFloat(), final_unknown="drop").show(KEYS)
    envs = gymnasium.vector.SyncVectorEnv([dataset.make_env] * args.eval_episodes)
    agent = Agent(dataset, envs.single_action_space, args)
    mean, std = agent.inputs.shift.cpu(), agent.inputs.scale.cpu()
    sequences = rl.SequenceTransform.dt_corl(args.length, mean=mean, std=std, reward_scale=agent.scale)
    dataset.append_transform(sequences)

    # A run may go on for more steps, or on another device; all other arguments are those of its checkpoint.
    changeable = {"steps", "device", "out", "wandb"}
    settings = {name: value for name, value in vars(args).items() if name not in changeable}
    settings |= {"program": NAME, "data": dataset.manifest.digest}
    step, seconds, history = 0, 0.0, []
    if state := load_checkpoint(args.out / "checkpoint.pt", settings):
        agent.load_state_dict(state["networks"])
        agent.optimizer.load_state_dict(state["optimizer"])
        sampler.load_state_dict(state["sampler"])
        torch.set_rng_state(state["random"][0])
        torch.cuda.set_rng_state_all(state["random"][1:])
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
            "random": [torch.get_rng_state(), *torch.cuda.get_rng_state_all()],  # of the dropout
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
