"""Preprocessing recipes by name, and training programs of one file each that import public names only."""
