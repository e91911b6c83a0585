"""Contents of a dataset: distributions of values, and the rows of an episode, as plain numbers without torch."""

from datasets_rl.look.description import Description, Ends, EndStatistics, FieldDescription, describe
from datasets_rl.look.histograms import Distribution, Histogram, distribution
from datasets_rl.look.rows import EpisodeRows, Image, Row, episode_rows
from datasets_rl.look.steps import StepReader

__all__ = [
    "Description",
    "Distribution",
    "EndStatistics",
    "Ends",
    "EpisodeRows",
    "FieldDescription",
    "Histogram",
    "Image",
    "Row",
    "StepReader",
    "describe",
    "distribution",
    "episode_rows",
]
