"""What every test is run with: how many examples the properties try, and an interrupt that processes hear."""

import signal

from hypothesis import settings

# A few in `make test`, many in `make soak`. Neither has a deadline.
settings.register_profile("test", max_examples=120, deadline=None)
settings.register_profile("soak", max_examples=5000, deadline=None)
settings.load_profile("test")

# A shell without job control starts what is put in the background deaf to Ctrl-C, and so all that this starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
