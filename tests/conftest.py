"""How many examples the properties try: a few in `make test`, many in `make soak`. Neither has a deadline."""

from hypothesis import settings

settings.register_profile("test", max_examples=120, deadline=None)
settings.register_profile("soak", max_examples=5000, deadline=None)
settings.load_profile("test")
