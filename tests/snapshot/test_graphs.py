"""What passes do to real graphs, kept as text: a change here is a change to every model, so read the difference."""

import pytest

from tests.snapshot.graphs import FOLDER, texts


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_graph_after_each_pass_is_the_one_kept(family: str) -> None:
    made = dict(texts(family))
    kept = {path.name: path.read_text() for path in FOLDER.glob(f"{family}-*.txt")}

    assert kept == made, "if the change is meant: python -m tests.snapshot.graphs"
