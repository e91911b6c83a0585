"""Local datasets that grow by recorded episodes, or by episodes of other datasets."""
