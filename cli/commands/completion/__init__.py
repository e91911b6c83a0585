"""``rlds completion``: the tab key in bash, fish and zsh."""

GROUP = "Maintain"
HELP = """Complete commands, ids, recipes and steps with the tab key.

\b
Examples:
  rlds completion install
  rlds completion install zsh
  rlds completion uninstall
"""
