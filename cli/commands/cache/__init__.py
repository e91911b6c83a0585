"""``rlds cache``: the data folder as a whole."""

GROUP = "Maintain"
HELP = """List, check, clean or move what the data folder holds.

\b
Examples:
  rlds cache ls
  rlds cache prune --versions --dry-run
  rlds cache move /mnt/disk2/rl
"""
