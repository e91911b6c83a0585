"""What there is: the datasets of all sources with their figures, scores, citations, environments and mixtures."""
