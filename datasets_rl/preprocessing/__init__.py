"""Preprocessing of stored datasets: recipes, their steps, and the runs that apply them.

The public names are listed in `__init__.pyi`. Each is imported when it is first used, so that a command that reads a
recipe does not import torch.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
