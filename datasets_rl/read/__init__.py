"""Readers of file formats, safe for damaged and untrusted files."""
