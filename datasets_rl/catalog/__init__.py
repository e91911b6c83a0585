"""The catalog: the datasets of all sources with figures, scores, citations, environments and mixtures."""
