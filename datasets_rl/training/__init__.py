"""The shared parts of training programs: arguments, and a run that evaluates, saves, resumes and can be interrupted.

A program of `datasets_rl.recipes.train` consists of an algorithm and these classes: a `Parser` with the arguments, a
`Learner` with the networks and the update, and a `Run` of both.

The public names are listed in `__init__.pyi`. Each name is imported on first use, so that the arguments of a program are
checked without torch.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
