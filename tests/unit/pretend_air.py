"""Where prefill flies in tests: what a thread decides by chance is decided by whoever sets `is_early` and `is_due`."""

from concurrent.futures import Future
from functools import partial


class Late(Future):
    """A step that is known to be done when a rule says so, and computed then at last, or when it was begun."""

    def __init__(self, compute, air):
        super().__init__()
        self.compute, self.air = compute, air
        if air.is_early:
            self._end()

    def done(self):
        return self.air.is_due

    def result(self, timeout=None):
        if not super().done():
            self._end()
        return super().result(timeout)

    def _end(self):
        try:
            self.set_result(self.compute())
        except Exception as error:
            self.set_exception(error)


class Air:
    """In place of the thread on which prefill flies."""

    is_early = is_due = False

    def submit(self, function, *arguments):
        return Late(partial(function, *arguments), self)

    def shutdown(self):
        return

    def replace_thread_of(self, engine):
        engine._runway.close()
        engine._runway._thread = self
