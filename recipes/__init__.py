"""Preprocessing recipes by name, and training programs in a file each that import public names only."""
