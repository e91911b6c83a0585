"""Statements for papers: what a dataset is, by the manifest, the lock and the audit, and what is not stated.

statement    the contract: the facts of a dataset
answers      the questions of a datasheet, each with or without an answer
paragraph    a paragraph for the appendix, LaTeX
datasheet    the questions and the answers, Markdown
croissant    croissant.json: Croissant 1.1 with the fields of Responsible AI
write        the folder with all of them, for several datasets or a lock
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
