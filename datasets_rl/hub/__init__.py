"""Sharing: a dataset as a repository of the Hugging Face Hub."""
