"""Statements for papers: what a dataset is, from the manifest, the lock and the audit, and what nobody stated.

statement    the contract: what is known about a dataset
answers      the questions of a datasheet, each with the answer, or without one
paragraph    a paragraph for the appendix, LaTeX
datasheet    the questions and the answers, Markdown
croissant    croissant.json: Croissant 1.1 with the fields of Responsible AI
write        the folder with all of them, for several datasets or a lock
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
