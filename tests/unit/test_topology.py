"""Where threads go, on hosts of every shape."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.base.errors import ResourceError
from trivet.driver.facts import HostFacts
from trivet.driver.placement_facts import NumaNode
from trivet.driver.readers.host import read_facts
from trivet.driver.topology import available_memory, choose_node, cpus_for, usable_cores

HOSTS = Path(__file__).parents[1] / "fixtures" / "hosts"
KUNPENG = read_facts(HOSTS / "kunpeng-910b")
CONTAINER = read_facts(HOSTS / "kunpeng-container")


def host(
    num_nodes: int, cores: int, threads: int, *, allowed: tuple[int, ...] | None = None, quota: object = "unlimited"
) -> HostFacts:
    """A host without NPUs: threads of a core are numbered far apart, as on Xeons; later nodes have more memory free."""
    per_thread = num_nodes * cores
    siblings = tuple(tuple(core + per_thread * thread for thread in range(threads)) for core in range(per_thread))
    nodes = tuple(
        NumaNode(
            id=node,
            cpus=tuple(cpu for core in siblings[node * cores : (node + 1) * cores] for cpu in core),
            memory_total_bytes=64 << 30,
            memory_free_bytes=(node + 1) << 30,
            distances={other: 10 + 10 * abs(node - other) for other in range(num_nodes)},
            huge_pages=(),
        )
        for node in range(num_nodes)
    )
    online = tuple(range(per_thread * threads))
    cpus = replace(KUNPENG.cpus, online=online, cores=siblings, allowed=online if allowed is None else allowed)
    return replace(KUNPENG, cpus=cpus, nodes=nodes, pci=(), cgroup=replace(KUNPENG.cgroup, cpu_quota=quota))


def test_by_default_one_thread_runs_on_each_core_beside_the_first_npu():
    placement = cpus_for(KUNPENG)

    assert tuple(range(72, 96)) == placement.cpus
    assert 3 == placement.node
    assert "the node of NPU 0000:01:00.0" == str(placement.reason)


def test_hardware_threads_of_one_core_do_not_get_a_thread_each():
    assert (0, 1, 2, 3) == cpus_for(host(1, 4, 2)).cpus


def test_without_an_npu_the_node_with_most_free_memory_is_chosen_and_the_reason_says_so():
    node, reason = choose_node(host(4, 8, 1))

    assert 3 == node.id
    assert "the most of 4 nodes: 8 cores, 4.0 GiB of memory free" == str(reason)


def test_a_node_with_more_usable_cores_comes_before_one_with_more_memory():
    node, _ = choose_node(host(2, 4, 1, allowed=(0, 1, 2, 7)))

    assert 0 == node.id


def test_an_npu_on_a_node_that_is_not_allowed_gives_the_nearest_that_is():
    facts = replace(KUNPENG, cpus=replace(KUNPENG.cpus, allowed=tuple(range(72))))
    node, reason = choose_node(facts)

    assert 2 == node.id
    assert "the nearest usable node to NPU 0000:01:00.0 on node 3" == str(reason)


@pytest.mark.parametrize(("threads", "quota"), [(1, 0.5), (1, 1.5), (2, 2.0), (8, 64.0), (8, "unlimited"), (8, None)])
def test_a_cpu_quota_bounds_the_default(threads, quota):
    assert threads == len(cpus_for(host(1, 8, 1, quota=quota)).cpus)


def test_threads_beyond_a_node_take_cores_of_the_nearest_nodes_before_shared_cores():
    facts = host(3, 2, 2)

    assert (4, 5) == cpus_for(facts).cpus
    assert (4, 5, 2, 3, 0, 1, 10, 11) == cpus_for(facts, 8).cpus
    assert None is cpus_for(facts, 8).node
    assert 2 == cpus_for(facts, 2).node


@pytest.mark.parametrize(
    ("facts", "num_threads", "says"),
    [
        (host(1, 4, 1), 5, "threads: 5 asked for, 4 available: the host has 4 CPUs"),
        (host(1, 4, 1, allowed=(1, 3)), 3, "threads: 3 asked for, 2 available: this process may use 2 of 4 CPUs"),
        (host(1, 4, 1, quota=1.5), 2, "threads: 2 asked for, 1 available: the cgroup's quota of 1.5 CPUs binds"),
        (host(1, 4, 1), 0, "threads: 0 asked for, at least 1 is needed"),
        (host(1, 4, 1, allowed=()), None, "threads: no CPU is known to be usable"),
    ],
)
def test_threads_that_there_are_not_are_refused_with_have_and_want(facts, num_threads, says):
    with pytest.raises(ResourceError) as refusal:
        cpus_for(facts, num_threads)

    assert refusal.value.message.startswith(says)
    assert refusal.value.hint


def test_without_numa_facts_every_usable_core_is_taken():
    facts = replace(host(2, 4, 1), nodes=None)

    assert tuple(range(8)) == cpus_for(facts).cpus
    assert None is cpus_for(facts).node


def test_without_core_facts_each_cpu_counts_as_a_core():
    facts = host(1, 2, 2)
    facts = replace(facts, cpus=replace(facts.cpus, cores=None))

    assert ((0,), (1,), (2,), (3,)) == usable_cores(facts)


def test_the_memory_available_is_what_both_the_kernel_and_the_cgroup_allow():
    assert 6 << 30 == available_memory(CONTAINER)
    assert KUNPENG.memory.available_bytes == available_memory(KUNPENG)


@given(
    st.builds(
        host,
        st.integers(1, 4),
        st.integers(1, 5),
        st.integers(1, 3),
        allowed=st.lists(st.integers(0, 59), min_size=1, unique=True).map(lambda ids: tuple(sorted(ids))),
        quota=st.one_of(st.none(), st.just("unlimited"), st.floats(0.1, 80)),
    ),
    st.one_of(st.none(), st.integers(1, 70)),
)
def test_a_placement_uses_each_allowed_cpu_at_most_once_or_is_refused(facts, num_threads):
    usable = set(facts.cpus.allowed) & set(facts.cpus.online)
    try:
        placement = cpus_for(facts, num_threads)
    except ResourceError:
        quota = facts.cgroup.cpu_quota
        bound = max(1, int(quota)) if isinstance(quota, float) else len(usable)
        assert not usable or num_threads > min(bound, len(usable))
        return

    assert len(set(placement.cpus)) == len(placement.cpus) == (num_threads or len(placement.cpus))
    assert 1 <= len(placement.cpus)
    assert set(placement.cpus) <= usable
