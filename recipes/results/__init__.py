"""Measurements of the training programs: datasets and environments for training, and tables of results."""
