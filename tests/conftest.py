"""Process-wide settings of the test suite: the hypothesis profile and the handler of Ctrl-C."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# The time to draw an example depends on the machine, not on the code.
settings.register_profile("any machine", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# A shell starts background processes with SIGINT ignored; tests send SIGINT to the programs that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
