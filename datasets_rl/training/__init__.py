"""What every training program repeats: its arguments, and a run that evaluates, saves, resumes and can be interrupted.

A program of `datasets_rl.recipes.train` is its algorithm on these names: a `Parser` with its arguments, a `Learner` with its networks
and its update, and a `Run` of both.
"""

from datasets_rl.training.arguments import Parser, run_program
from datasets_rl.training.checkpoints import latest_checkpoint, read_checkpoint, write_checkpoint
from datasets_rl.training.evaluation import Episodes, Policy, play, success_interval, summarize
from datasets_rl.training.goals import evaluate_tasks, goal_policy
from datasets_rl.training.learner import (
    Learner,
    RewardScaling,
    action_normalizer,
    cosine_decay,
    load_transitions,
    make_mlp,
    observation_normalizer,
    reward_scaling,
    warm_up,
)
from datasets_rl.training.observations import ObservationEncoder, stack_observations
from datasets_rl.training.online import OnlineEpisodes
from datasets_rl.training.run import Run, Source

__all__ = [
    "Episodes",
    "Learner",
    "ObservationEncoder",
    "OnlineEpisodes",
    "Parser",
    "Policy",
    "RewardScaling",
    "Run",
    "Source",
    "action_normalizer",
    "cosine_decay",
    "evaluate_tasks",
    "goal_policy",
    "latest_checkpoint",
    "load_transitions",
    "make_mlp",
    "observation_normalizer",
    "play",
    "read_checkpoint",
    "reward_scaling",
    "run_program",
    "stack_observations",
    "success_interval",
    "summarize",
    "warm_up",
    "write_checkpoint",
]
