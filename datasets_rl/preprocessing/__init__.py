"""Preprocessing of stored datasets: recipes, their steps, and the runs that apply them."""

from datasets_rl.preprocessing.base import DataStep, Step
from datasets_rl.preprocessing.functions import Function
from datasets_rl.preprocessing.plan import plan_result
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.preprocessing.run import Preview, preprocess, preview

__all__ = ["DataStep", "Function", "Preview", "Recipe", "Step", "plan_result", "preprocess", "preview"]
