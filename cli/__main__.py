"""``python -m datasets_rl.cli``: the command rlds."""

from .app import main

raise SystemExit(main())
