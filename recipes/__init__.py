"""Preprocessing recipes by name, and training recipes of one file each that import public names only."""
