"""Which stored datasets hold the episodes of a dataset: exact copies and near copies, found by fingerprints.

known       the stored datasets, which are opened when needed
index       the fingerprints of all stored datasets in sorted arrays, a cache in the home folder
pixels      whether two episodes have the same images, of which one has files
near        whether two episodes are near copies, from their values
identify    the search, and its result
"""

from datasets_rl.identifying.identify import Identity, Match, identify

__all__ = ["Identity", "Match", "identify"]
