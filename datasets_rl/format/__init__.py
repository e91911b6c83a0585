"""Format on disk, as specified in FORMAT.md: schema, manifest, writer, reader, integrity check."""
