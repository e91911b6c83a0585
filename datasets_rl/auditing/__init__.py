"""Audit of the data of a dataset: faults of recordings, such as frozen cameras, shifted actions, and duplicate episodes.

The findings follow from measures of episodes:

    finding    what an audit reports
    base       the contract of a check
    checks     a file for each check
    data       the audited dataset: fields by what they mean, and what is usual
    block      rows of the dataset that the checks measure at once
    run        the pass over the dataset
    conventions    the comparison of the members of a mixture
    parts      the episodes that are in two datasets
"""

from datasets_rl.auditing.checks import CHECKS
from datasets_rl.auditing.conventions import Conventions, audit_mixture
from datasets_rl.auditing.finding import LEVELS, Audit, Finding
from datasets_rl.auditing.parts import SharedEpisodes, audit_parts
from datasets_rl.auditing.run import audit

__all__ = [
    "CHECKS",
    "LEVELS",
    "Audit",
    "Conventions",
    "Finding",
    "SharedEpisodes",
    "audit",
    "audit_mixture",
    "audit_parts",
]
