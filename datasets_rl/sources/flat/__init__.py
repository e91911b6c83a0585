"""Flat rows: arrays with a row for each step of all episodes of a file in order, read as a declared `Layout` states."""
