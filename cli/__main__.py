"""``python -m datasets_rl.cli``: the command rlds."""

from datasets_rl.cli.app import main

raise SystemExit(main())
