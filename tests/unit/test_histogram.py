import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as Theirs

from trivet.framework.engine.histogram import Histogram

EDGES = (0.01, 0.1, 1.0, 20.0, 500000.0)


@given(st.lists(st.lists(st.sampled_from([0.0, *EDGES, 0.05, 3.5, 99.0, 1e6])), max_size=6))
def test_it_says_what_the_clients_own_histogram_says_one_by_one_or_all_at_once(steps):
    registry, alone, together = CollectorRegistry(), Histogram(EDGES), Histogram(EDGES)
    theirs = Theirs("gap_seconds", "Gaps", registry=registry, buckets=EDGES)
    for seen in steps:
        together.observe_all(seen)
        for value in seen:
            alone.observe(value)
            theirs.observe(value)

    for found in (alone, together):
        for edge, count in found.buckets():
            assert registry.get_sample_value("gap_seconds_bucket", {"le": edge}) == count
        assert registry.get_sample_value("gap_seconds_sum") == pytest.approx(found.sum)
