"""Locks of datasets: a text file that names the datasets of a project byte for byte, and makes the same bytes again.

lock        the contract: what a lock holds, and the text of the file
programs    the datasets that a program opens, by its syntax tree
write       from ids, mixtures and programs to a lock of the stored datasets
compare     the differences between a stored dataset and a lock
sync        from a lock to the same bytes: from the home, another folder, the hub, a recipe or the upstream
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
