"""Datasets with the interfaces of other projects' dataset classes, for the training programs of these projects.

Each module has the interface that the training programs of a project use, over the steps of a stored dataset: nothing is
exported and nothing is copied. The methods ``as_...`` of a dataset return the objects.
"""
