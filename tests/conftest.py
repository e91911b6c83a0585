"""What all tests need of the process that they run in."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# How long drawing an example takes says something about the machine, and nothing about the code.
settings.register_profile("any machine", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# A shell lets what it starts in the background ignore Ctrl-C, and so would the programs that tests send it to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
