"""The format on disk, which FORMAT.md describes: schema, manifest, writer, reader, integrity check."""
