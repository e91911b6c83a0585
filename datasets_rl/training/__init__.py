"""What every training program repeats: its arguments, and a run that evaluates, saves, resumes and can be interrupted.

A program of `datasets_rl.recipes.train` is its algorithm on these names: a `Parser` with its arguments, a `Learner` with its networks
and its update, and a `Run` of both.

The public names are listed in `__init__.pyi`. Each is imported when it is first used, so that the arguments of a program
are checked without torch.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
