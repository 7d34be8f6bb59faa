"""What tests of conversion share: settings that make several shards, and progress that does something in the middle."""

from trivet.framework.model.steps import Wanted

SIX_SHARDS = Wanted(shard_bytes=100_000)  # of the tiny Llama


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def after(num_bytes, act):
    """A progress that calls `act` once when so much is written."""

    def progress(doing, done, total):
        if doing == "converting" and done >= num_bytes:
            act()

    return progress


def interrupt():
    raise KeyboardInterrupt
