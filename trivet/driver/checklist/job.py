"""Checks of a job on several NPUs or hosts: where ranks meet, who they are, and whether the hosts are alike."""

from __future__ import annotations

from functools import partial

from trivet.driver.check import Judgement, check, failed, not_asked, passed, unread, warning
from trivet.driver.facts import HostFacts
from trivet.driver.installed import environment, family
from trivet.driver.need import Need
from trivet.driver.peers import tls_of, versions_of

_here = partial(check, layer="network", needs=("npu_absent",))


@_here("NET013", "warning", source="HCCL docs: HCCL_IF_IP; /proc/net/fib_trie")
def hccl_address_not_here(facts: HostFacts, need: Need) -> Judgement:
    address = (environment(facts) or {}).get("HCCL_IF_IP")
    if not address:
        return not_asked("HCCL_IF_IP is not set")
    if facts.local_addresses is None or ":" in address:
        return unread("the addresses of this host")
    if address in facts.local_addresses:
        return passed("HCCL_IF_IP={address} is an address of this host", address=address)
    return warning(
        "HCCL_IF_IP={address} is no address of this host; there are: {known}",
        "export HCCL_IF_IP=ADDRESS  # of this host, on each its own; in a container: docker run --net=host",
        address=address, known=", ".join(facts.local_addresses) or "none",
    )  # fmt: skip


@_here("NET014", "error", source="HCCL docs: the table of ranks, forms 1.0 and 1.2; EI0004, EI0014")
def rank_table_wrong(facts: HostFacts, need: Need) -> Judgement:
    table = facts.stack.rank_table if facts.stack else None
    if table is None:
        return not_asked("no variable names a table of ranks")
    faults = list(table.faults)
    ports = facts.npu_network.ports if facts.npu_network else ()
    own = {port.npu: port.address for port in ports if port.address is not None}
    faults += [
        f"it gives NPU {npu} {address}, and that has {own[npu]}"
        for npu, address in table.addresses.items()
        if own.get(npu, address) != address
    ]
    if not faults:
        return passed("{file} is a table of ranks", file=table.file)
    return failed(
        "{file}: {fault}",
        "hccn_tool -i N -ip -g  # the addresses as they are; none: hccn_tool -i N -ip -s address A netmask M",
        "make the table again, with the addresses of all hosts",
        file=table.file, fault="; ".join(faults),
    )  # fmt: skip


@_here("NET015", "warning", source="torch.distributed: MASTER_ADDR, MASTER_PORT")
def master_unreachable(facts: HostFacts, need: Need) -> Judgement:
    tried = facts.master
    if tried is None:
        return not_asked("where ranks meet was not tried: MASTER_ADDR, MASTER_PORT and trivet doctor --probe do")
    if tried.refusal is None:
        return passed("{address} takes connections", address=tried.address)
    return warning(
        "{address}, where the ranks meet, takes no connection ({refusal})",
        "start the first rank; it listens only while it waits for the others",
        "nc -zv {host} {port}  # from each host: address, route, firewall",
        address=tried.address, refusal=tried.refusal, host=tried.address.rpartition(":")[0],
        port=tried.address.rpartition(":")[2],
    )  # fmt: skip


@_here("NET016", "error", source="HCCL docs: the table of ranks of A3; HDK docs: SDID")
def super_pods_differ(facts: HostFacts, need: Need) -> Judgement:
    if family(facts) != "a3":
        return not_asked("only A3 has super pods")
    known = [each for each in (facts.npu_smi.super_pods if facts.npu_smi else None) or () if each.sdid is not None]
    if not known:
        return unread("the super pod of the NPUs")
    pods = {each.super_pod_id for each in known}
    if len(pods) == 1 and len({each.sdid for each in known}) == len(known):
        return passed("{count} chips are in super pod {pod}, each with an SDID of its own", count=len(known),
                      pod="?" if None in pods else next(iter(pods)))  # fmt: skip
    return failed(
        "the chips of this host name super pods {pods}, or an SDID comes twice",
        "npu-smi info -t spod-info -i N -c C  # of each; then the configuration of the super pod",
        pods=", ".join(sorted(str(pod) for pod in pods)),
    )


@check("NET017", "error", layer="network", source="HCCL error templates: EI0008, EI0016; hccl fault diagnosis")
def hosts_differ(facts: HostFacts, need: Need) -> Judgement:
    if not need.peers:
        return not_asked("no report of another host was given: --peer host.json does")
    own, tls = versions_of(facts), tls_of(facts)
    found = [
        f"{peer.name} has {name} {version}, and here is {own[name]}"
        for peer in need.peers
        for name, version in peer.versions.items()
        if own.get(name, version) != version
    ]
    found += [
        f"{peer.name} has TLS {'on' if peer.is_tls_on else 'off'}, and here it is {'on' if tls else 'off'}"
        for peer in need.peers
        if peer.is_tls_on is not None and tls is not None and peer.is_tls_on != tls
    ]
    if not found:
        return passed("{count} other hosts have the same versions", count=len(need.peers))
    return failed(
        "hosts differ: {found}",
        "the same HDK, CANN, torch_npu and image on every host; hccn_tool -i N -tls -s enable 0 on all",
        found="; ".join(found[:4]),
    )
