"""Preprocessing of stored datasets: recipes, steps, and the runs that apply recipes.

The public names are listed in `__init__.pyi`. Each name is imported on first use, so that a command that reads a
recipe does not import torch.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
