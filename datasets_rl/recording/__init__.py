"""Datasets of the user's own that grow: by recorded episodes, or by episodes of other datasets."""
