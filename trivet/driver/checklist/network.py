"""Checks of the NPUs' own network, for jobs on several hosts. One host works without it, so at most they warn."""

from __future__ import annotations

from functools import partial

from trivet.driver.check import Judgement, check, not_asked, note, passed, unknown, unread, warning
from trivet.driver.facts import HostFacts
from trivet.driver.installed import chips, environment, family
from trivet.driver.need import Need
from trivet.driver.npu_facts import NpuPort

_HCCN = "documents of hccn_tool; its outputs on A2 and A3"
_INTERFACES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_here = partial(check, layer="network")
_DEFAULT_TIMEOUT_S = 120  # of HCCL_CONNECT_TIMEOUT
_MEGABYTE = 1 << 20


@_here("NET001", "note", source=_HCCN, needs=("npu_absent",))
def hccn_tool_missing(facts: HostFacts, need: Need) -> Judgement:
    if family(facts) not in ("a2", "a3"):
        return not_asked("only A2 and A3 have network ports of their own")
    commands = facts.npu_network.commands if facts.npu_network else ()
    if any(command.outcome == "absent" for command in commands):
        return note(
            "there is no hccn_tool, so the NPUs' network could not be looked at",
            "docker run -v /usr/local/Ascend/driver/tools/hccn_tool:/usr/local/Ascend/driver/tools/hccn_tool",
        )
    if not commands:
        return unknown("hccn_tool was not asked")
    return passed("hccn_tool is here")


@_here("NET002", "warning", source="vllm-ascend docs, several hosts: /etc/hccn.conf", needs=("npu_absent",))
def port_addresses_missing(facts: HostFacts, need: Need) -> Judgement:
    if family(facts) not in ("a2", "a3"):
        return not_asked("only A2 and A3 have network ports of their own")
    ports = _ports(facts)
    if not ports:
        return unread("/etc/hccn.conf and hccn_tool")
    lost = [port.npu for port in ports if port.address is None and port.configured_address is None]
    count = max(len(chips(facts)), len(ports))
    if not lost and len(ports) == count:
        return passed("{count} NPUs have an address of their own", count=count)
    return warning(
        "{count} of {total} NPUs have no network address: no other host reaches them",
        "sudo hccn_tool -i N -ip -s address A.B.C.D netmask 255.255.255.0",
        "docker run -v /etc/hccn.conf:/etc/hccn.conf",
        count=count - len(ports) + len(lost), total=count,
    )  # fmt: skip


@_here("NET003", "warning", source="vllm-ascend issues: HcclCommPrepare fail 0x9", needs=("port_addresses_missing",))
def port_address_stale(facts: HostFacts, need: Need) -> Judgement:
    known = [port for port in _ports(facts) if port.address and port.configured_address]
    if not known:
        return unknown("addresses are known from one side only, so they cannot be compared")
    stale = [port for port in known if port.address != port.configured_address]
    if not stale:
        return passed("/etc/hccn.conf and {count} NPUs agree on addresses", count=len(known))
    return warning(
        "NPU {npu} has {address}, and /etc/hccn.conf says {configured}: HCCL believes the file",
        "sudo hccn_tool -i {npu} -ip -s address {configured} netmask {netmask}  # or mend the file; then start anew",
        npu=stale[0].npu, address=stale[0].address, configured=stale[0].configured_address,
        netmask=stale[0].netmask or "255.255.255.0",
    )  # fmt: skip


@_here("NET004", "warning", source=_HCCN, needs=("hccn_tool_missing",))
def port_down(facts: HostFacts, need: Need) -> Judgement:
    known = [port for port in _ports(facts) if port.link is not None]
    down = [port for port in known if port.link != "UP"]
    if not known:
        return unread("the state of the NPUs' ports")
    if not down:
        return passed("the ports of {count} NPUs are up", count=len(known))
    return warning(
        "the ports of {count} of {total} NPUs are not up: {npus}",
        "hccn_tool -i {first} -link_stat -g  # since when; then optics, cable, switch",
        "sudo hccn_tool -i {first} -cfg recovery",
        count=len(down), total=len(known), npus=", ".join(f"NPU {port.npu} {port.link}" for port in down),
        first=down[0].npu,
    )  # fmt: skip


@_here("NET005", "warning", source=_HCCN, needs=("port_down",))
def port_unreachable(facts: HostFacts, need: Need) -> Judgement:
    known = [port for port in _ports(facts) if port.net_health is not None]
    bad = [port for port in known if port.net_health not in ("Success", "Init")]
    if not known:
        return unread("what hccn_tool -net_health says")
    if not bad:
        return passed("{count} NPUs reach the address they detect with", count=len(known))
    return warning(
        "net_health of NPU {npu}: {health}",
        "hccn_tool -i {npu} -netdetect -g; hccn_tool -i {npu} -gateway -g",
        npu=bad[0].npu, health=bad[0].net_health,
    )  # fmt: skip


@_here("NET006", "warning", source=_HCCN, needs=("hccn_tool_missing",))
def optics_missing(facts: HostFacts, need: Need) -> Judgement:
    known = [port for port in _ports(facts) if port.has_optical is not None]
    lost = [port for port in known if not port.has_optical]
    if not known:
        return unread("the optical modules")
    if not lost:
        return passed("{count} NPUs have their optical module", count=len(known))
    return warning("NPU {npu} has no optical module", "seat it again, or replace it", npu=lost[0].npu)


@_here("NET007", "warning", source=f"{_HCCN}; vllm-ascend issues on FEC", needs=("hccn_tool_missing",))
def fec_modes_differ(facts: HostFacts, need: Need) -> Judgement:
    return _same({port.npu: port.fec for port in _ports(facts)}, "FEC", "sudo hccn_tool -i N -fec -s encoding rs")


@_here("NET008", "warning", source="hccl fault diagnosis: TLS switches differ", needs=("hccn_tool_missing",))
def tls_switches_differ(facts: HostFacts, need: Need) -> Judgement:
    switches = {
        port.npu: None if port.is_tls_on is None else ("on" if port.is_tls_on else "off") for port in _ports(facts)
    }
    return _same(switches, "TLS", "sudo hccn_tool -i N -tls -s enable 0  # the same on every host")


@_here("NET009", "note", source=_HCCN, needs=("hccn_tool_missing",))
def packets_lost(facts: HostFacts, need: Need) -> Judgement:
    known = [port for port in _ports(facts) if port.error_packets is not None]
    counts = [f"NPU {port.npu} {name} {n}" for port in known for name, n in (port.error_packets or {}).items() if n]
    if not known:
        return unread("the counters of hccn_tool -stat")
    if not counts:
        return passed("no faulty packet on {count} NPUs", count=len(known))
    return note(
        "faulty packets since the start: {counts}",
        "ask again in a minute: only a counter that grows is a fault; then congestion, optics, switch",
        counts="; ".join(counts[:4]),
    )


@_here("NET010", "warning", source="HCCL docs: HCCL_SOCKET_IFNAME; /sys/class/net", needs=("npu_absent",))
def interface_not_there(facts: HostFacts, need: Need) -> Judgement:
    variables = environment(facts)
    if variables is None:
        return unread("the environment")
    if not any(name in variables for name in _INTERFACES):
        return not_asked("no variable names a network interface")
    if facts.network is None:
        return unread("the network interfaces")
    states = {interface.name: interface.state for interface in facts.network}
    wrong = [
        f"{name}={variables[name]}" for name in _INTERFACES if name in variables and not _is_up(variables[name], states)
    ]
    if not wrong:
        return passed("the interfaces that the variables name are up")
    return warning(
        "{wrong}: no such interface is up here; there are: {names}",
        "export HCCL_SOCKET_IFNAME=NAME  # in a container: docker run --net=host",
        wrong=", ".join(wrong), names=", ".join(sorted(states)),
    )  # fmt: skip


@_here("NET011", "warning", source="HCCL docs: HCCL_CONNECT_TIMEOUT, 120 s by default", needs=("npu_absent",))
def hccl_timeout_short(facts: HostFacts, need: Need) -> Judgement:
    text = (environment(facts) or {}).get("HCCL_CONNECT_TIMEOUT")
    if text is None:
        return not_asked("HCCL_CONNECT_TIMEOUT is not set: ranks wait 120 s for each other")
    if not text.isdecimal():
        return warning(
            "HCCL_CONNECT_TIMEOUT={text} is no number of seconds", "export HCCL_CONNECT_TIMEOUT=600", text=text
        )
    if int(text) >= _DEFAULT_TIMEOUT_S:
        return passed("ranks wait {text} s for each other", text=text)
    return note("HCCL_CONNECT_TIMEOUT={text}: a rank that loads longer is given up", "export HCCL_CONNECT_TIMEOUT=600",
                text=text)  # fmt: skip


@_here("NET012", "note", source="HCCL docs: HCCL_BUFFSIZE, in MB, twice for each communicator", needs=("npu_absent",))
def hccl_buffers_large(facts: HostFacts, need: Need) -> Judgement:
    text = (environment(facts) or {}).get("HCCL_BUFFSIZE")
    sizes = [chip.hbm_total_bytes for chip in chips(facts) if chip.hbm_total_bytes]
    if text is None:
        return not_asked("HCCL_BUFFSIZE is not set: 200 MB for each communicator")
    if not text.isdecimal() or not sizes:
        return unknown("HCCL_BUFFSIZE={text} cannot be held against the memory of the NPUs", text=text)
    share = 2 * int(text) * _MEGABYTE / min(sizes)
    if share < 0.05:
        return passed("each communicator takes {share:.1%} of an NPU's memory", share=share)
    return note("HCCL_BUFFSIZE={text}: each communicator takes {share:.0%} of an NPU's memory",
                "export HCCL_BUFFSIZE=200", text=text, share=share)  # fmt: skip


def _ports(facts: HostFacts) -> tuple[NpuPort, ...]:
    return facts.npu_network.ports if facts.npu_network else ()


def _same(values: dict[int, str | None], what: str, remedy: str) -> Judgement:
    known = {npu: value for npu, value in values.items() if value is not None}
    if not known:
        return unread(what)
    if len(set(known.values())) == 1:
        return passed(
            "{what} is {value} on {count} NPUs", what=what, value=next(iter(known.values())), count=len(known)
        )
    said = ", ".join(f"NPU {npu} {value}" for npu, value in known.items())
    return warning("{what} differs between the NPUs of this host: {said}", remedy, what=what, said=said)


def _is_up(text: str, states: dict[str, str | None]) -> bool:
    """As HCCL reads it: names or beginnings of names, "=" before an exact one, "^" before those that are not meant."""
    if text.startswith("^"):
        return True
    exact = text.startswith("=")
    names = [each for each in text.lstrip("=").split(",") if each]
    fits = [
        state for name, state in states.items() for each in names if (name == each if exact else name.startswith(each))
    ]
    return any(state != "down" for state in fits)
