from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from trivet.framework.engine.gap_histogram import GapHistogram

EDGES = (0.01, 0.1, 1.0, 20.0)


@given(st.lists(st.lists(st.sampled_from([0.0, *EDGES, 0.05, 3.5, 99.0]), min_size=1), max_size=6))
def test_it_says_what_the_clients_own_histogram_says(steps):
    registry, expected = CollectorRegistry(), CollectorRegistry()
    gaps = GapHistogram("gap_seconds", "Gaps", ("model",), ("tiny",), EDGES)
    registry.register(gaps)
    theirs = Histogram("gap_seconds", "Gaps", ("model",), registry=expected, buckets=EDGES).labels("tiny")
    for seen in steps:
        gaps.observe(seen)
        for value in seen:
            theirs.observe(value)

    for sample in (sample for family in expected.collect() for sample in family.samples):
        if not sample.name.endswith("_created"):
            found = registry.get_sample_value(sample.name, sample.labels)
            assert round(sample.value, 9) == round(found, 9)
