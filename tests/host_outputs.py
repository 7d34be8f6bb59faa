"""What npu-smi and hccn_tool print on a composed host, as the files of a captured tree."""

from __future__ import annotations

from collections.abc import Mapping

Files = dict[str, str | None]  # path in the tree → its text; None takes a file of the base away


def table(driver: str) -> Files:
    """Eight 910B2 that do nothing."""
    addresses = ("C1", "01", "C2", "02", "81", "41", "82", "42")
    temperatures = (49, 49, 48, 50, 48, 50, 48, 49)
    rows = [
        (f"{card}     910B2", "0", "OK", "94.2", temperatures[card], f"0000:{address}:00.0", 3400)
        for card, address in enumerate(addresses)
    ]
    return {"captured/npu-smi-info.txt": npu_smi(driver, rows, "Chip")}


def npu_smi(
    version: str, rows: list[tuple[str, str, str, str, int, str, int]], chip: str, memory: tuple[str, str] = ("", "")
) -> str:
    """The table of `npu-smi info` of idle cards."""
    is_hbm = not memory[0]
    head = "AICore(%)   Memory-Usage(MB)" + ("  HBM-Usage(MB)" if is_hbm else "")
    lines = [
        "+" + "-" * 96 + "+",
        f"| npu-smi {version:<24} Version: {version:<53}|",
        "+---------------------------+---------------+----------------------------------------------------+",
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
        f"| {chip:<25} | Bus-Id        | {head:<51}|",
        "+===========================+===============+====================================================+",
    ]
    for name, ids, health, power, temperature, address, used in rows:
        use = f"0           0    / 0          {used} / 65536" if is_hbm else f"0           {memory[0]}"
        lines += [
            f"| {name:<25} | {health:<13} | {power:<11} {temperature:<17} 0    / 0{'':<13}|",
            f"| {ids:<25} | {address:<13} | {use:<51}|",
            "+===========================+===============+====================================================+",
        ]
    lines += [
        "+---------------------------+---------------+----------------------------------------------------+",
        "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |",
        "+===========================+===============+====================================================+",
    ]
    for card in dict.fromkeys(row[0].split()[0] for row in rows):
        text = f"No running processes found in NPU {card}"
        lines += [f"| {text:<95}|", lines[-1]]
    return "\n".join(lines) + "\n"


def each_card(firmware: str, driver: str, verdict: str) -> Files:
    """What each of eight cards of one chip says of itself."""
    files: Files = {}
    for card in range(8):
        files[f"captured/npu-smi-info-t-board-i-{card}.txt"] = board(card, driver, firmware, verdict)
        files |= of_chip(card, 0)
    return files


def of_chip(card: int, chip: int) -> Files:
    whose = {"NPU ID": card, "Chip ID": chip}
    ecc = dict.fromkeys(
        ("HBM Single Bit Error Count", "HBM Double Bit Error Count", "HBM Double Bit Isolated Pages Count"), 0
    )
    pcie = dict.fromkeys(("TX Error Count", "RX Error Count", "Retry Count"), 0)
    said = {"health": {"Health": "OK", "Error Code": "NA", "Error Information": "NA"}, "ecc": ecc, "pcie-err": pcie}
    return {
        f"captured/npu-smi-info-t-{kind}-i-{card}-c-{chip}.txt": fields(whose | values) for kind, values in said.items()
    }


def board(card: int, driver: str, firmware: str, verdict: str) -> str:
    return fields({
        "NPU ID": card, "Product Name": "IT21HMDB02-B2", "Manufacturer": "Huawei", "Software Version": driver,
        "Firmware Version": firmware, "Compatibility": verdict,
    })  # fmt: skip


def fields(values: Mapping[str, object]) -> str:
    return "".join(f"\t{name:<31}: {value}\n" for name, value in values.items())


def network(num_npus: int) -> Files:
    conf = "".join(f"address_{npu}=192.0.2.{10 + npu}\nnetmask_{npu}=255.255.255.0\n" for npu in range(num_npus))
    files: Files = {"etc/hccn.conf": conf}
    for npu in range(num_npus):
        said = {
            "ip": f"ipaddr:192.0.2.{10 + npu}\nnetmask:255.255.255.0\n", "link": "link status: UP\n",
            "net_health": "net health status: Success\n", "speed": "Speed: 200000 Mb/s\n",
            "fec": "fec mode: rs FEC mode\n", "optical": "present : present\n",
            "tls": f"dev_id:{npu}, tls switch[0](0:disable, 1:enable), tls alarm time threshold[60]days\n",
            "stat": "packet statistics:\nroce_rx_err_pkt_num:0\nroce_tx_err_pkt_num:0\n",
        }  # fmt: skip
        files |= {f"captured/hccn_tool-i-{npu}-{kind}-g.txt": text for kind, text in said.items()}
    return files
