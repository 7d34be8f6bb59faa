"""Nothing that tells who and where a host is survives in what is sent, whatever file it stands in."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.driver.bundle import _redacted
from trivet.driver.capture import Tree
from trivet.driver.redact import Redactor

LETTERS = st.text(string.ascii_lowercase, min_size=5, max_size=9)
HOST, USER = LETTERS.map(lambda word: f"qh{word}"), LETTERS.map(lambda word: f"qu{word}")
TOKEN = st.text(string.ascii_letters + string.digits, min_size=20, max_size=40).map(lambda word: f"Zq9{word}")
IPV4 = st.tuples(st.integers(1, 99), *[st.integers(10, 250)] * 3).map(lambda parts: ".".join(map(str, parts)))
IPV6 = st.lists(st.integers(0x1000, 0xFFFF), min_size=7, max_size=7).map(
    lambda parts: ":".join(f"{part:x}" for part in (0x2A00, *parts))
)
MAC = st.lists(st.integers(0x10, 0xFF), min_size=6, max_size=6).map(
    lambda parts: ":".join(f"{part:02x}" for part in parts)
)
SERIAL = st.text(string.ascii_uppercase + string.digits, min_size=10, max_size=16).map(lambda word: f"02Q{word}")
IDENTIFIER = st.text("0123456789abcdef", min_size=63, max_size=63).map(lambda word: f"9{word}")

# A file of every kind that is read, and where in it which secret stands.
FILES = {
    "proc/self/mountinfo": "36 25 0:32 / /home/{user}/models rw - nfs4 {host}:/export/{user} rw,addr={ipv4}\n"
    "37 25 0:33 / /mnt rw - cifs //{host}.corp/share rw,username={user},password={token}\n",
    "proc/self/cgroup": "0::/system.slice/docker-{identifier}.scope\n",
    "proc/self/environ": "PATH=/home/{user}/bin\0VLLM_API_KEY={token}\0MASTER_ADDR={ipv4}\0HCCL_IF_IP={ipv6}\0",
    "proc/net/if_inet6": "{hexadecimal6} 02 40 00 80 eth0\n",
    "proc/net/tcp": "   0: {hexadecimal4}:1F90 00000000:0000 0A 0 0\n",
    "etc/hostname": "{host}\n",
    "etc/hosts": "{ipv4} {host} {host}.lan\n{ipv6}\t{host}\n",
    "etc/hccn.conf": "address_0={ipv4}\nnetmask_0=255.255.255.0\ngateway_0={ipv4}\n",
    "sys/class/net/eth0/address": "{mac}\n",
    "sys/class/nvme/nvme0/serial": "{serial}   \n",
    "captured/npu-smi-info-t-board-i-0.txt": "\tNPU ID                  : 0\n\tSerial Number           : {serial}\n",
    "captured/hccn_tool-i-0-ip-g.txt": "ipaddr:{ipv4}\nnetmask:255.255.255.0\n",
    "captured/dmesg.txt": "[1.5] nfs: server {host} ({ipv4}) is gone, {user}@{host}.example, [{ipv6}]:2049 {mac}\n",
    "captured.json": '{{"python": "/home/{user}/bin/python", "token": "{token}", "url": "https://{user}:{token}@{host}/x"}}',
    "proc/net/fib_trie": "  |-- {ipv4}\n    /32 host LOCAL\n",
    "proc/7/cmdline": "--static_resource_list=node:{ipv4},1.0,CPU,192,NPU,8",
    "job/hccl.json": '{{"server_list": [{{"server_id": "{ipv4}", "host_ip": "{ipv4}"}}]}}',
    "home/{user}/ascend/log/debug/plog/plog-1_20261129100000000.log": "[ERROR] HCCL(1,x): ip[{ipv4}] of {host}\n",
    "var/log/mindx-dl/devicePlugin/devicePlugin.log": "lib path is invalid: /home/{user}/driver, node {host} {ipv4}\n",
    "usr/local/Ascend/driver/version.info": "Version=25.5.2\nowner={user}\nbuilt on {host} for {user}\n",
}
EVERYWHERE = " {host} {user} {ipv4} {ipv6} {mac} serial: {serial}, token={token} {identifier}\n"


def hexadecimal(words: dict[str, str]) -> dict[str, str]:
    four = "".join(f"{int(part):02X}" for part in reversed(words["ipv4"].split(".")))
    six = "".join(part.zfill(4) for part in words["ipv6"].split(":"))
    return words | {"hexadecimal4": four, "hexadecimal6": six}


SECRETS = st.fixed_dictionaries(
    {
        "host": HOST, "user": USER, "token": TOKEN, "ipv4": IPV4, "ipv6": IPV6, "mac": MAC,
        "serial": SERIAL, "identifier": IDENTIFIER,
    }
).map(hexadecimal)  # fmt: skip


def redacted(files: dict[str, str], host: str = "", user: str = "") -> Tree:
    redactor = Redactor()
    redactor.know("host", [host] if host else [])
    redactor.know("user", [user] if user else [])
    return _redacted(Tree(files={path: text.encode() for path, text in files.items()}), redactor)


def whole(tree: Tree) -> str:
    return "\n".join((*tree.files, *tree.links, *tree.links.values(), *(text.decode() for text in tree.files.values())))


@given(SECRETS, st.booleans())
def test_no_planted_secret_survives_in_any_kind_of_file(secrets, everywhere):
    files = {path: (text + EVERYWHERE * everywhere).format(**secrets) for path, text in FILES.items()}
    files[f"home/{secrets['user']}/Ascend/version.info"] = "version=8.3.RC2\n"
    files[f"sys/fs/cgroup/docker-{secrets['identifier']}.scope/memory.max"] = "max\n"
    text = whole(redacted(files, secrets["host"], secrets["user"])).lower()

    assert [] == [kind for kind, secret in secrets.items() if secret.lower() in text]


@given(SECRETS, st.sampled_from(sorted(FILES)))
def test_what_one_file_gives_away_is_hidden_in_a_file_that_does_not_say_what_it_is(secrets, path):
    plain = {
        key: value
        for key, value in secrets.items()
        if key in ("token", "serial", "user") and f"{{{key}}}" in FILES[path]
    }
    files = {path: FILES[path].format(**secrets), "captured/other.txt": " ".join(plain.values())}
    text = redacted(files, secrets["host"], secrets["user"]).files["captured/other.txt"].decode()

    assert [] == [kind for kind, secret in plain.items() if secret in text]


@given(SECRETS)
def test_the_same_word_has_one_stand_in_and_different_words_have_different_ones(secrets):
    files = {"a/1": "{ipv4} {mac}".format(**secrets), "b/2": "{mac} {ipv4} 100.99.98.97".format(**secrets)}
    tree = redacted(files)
    first, second = tree.files["a/1"].split(), tree.files["b/2"].split()

    assert first == [second[1], second[0]]
    assert second[1] != second[2]


@pytest.mark.parametrize(
    "text",
    [
        "5.10.0-216.0.0.115.oe2203sp4.aarch64",
        "Firmware Version               : 7.1.0.7.220",
        "Version=24.1.0.3",
        "compatible_version_fw=[7.0.0,7.7.99]",
        "0000:c1:00.0 Processing accelerators [1200]: Huawei Device [19e5:d802] (rev 20)",
        "inet 127.0.0.1 netmask 255.255.0.0 any 0.0.0.0 :: ::1",
        "Node 0 MemTotal:       197541888 kB",
        "flags : avx512f avx512_bf16 amx_bf16",
        "0-23,96-119",
        "| 0     910B2               | OK            | 91.5        48                0    / 0             |",
        "2025-11-02 10:00:05.123456 std::runtime_error",
        "torch_npu-2.5.1.post1.dist-info opencv_python-4.10.0.84.dist-info",
    ],
)
def test_what_the_report_lives_on_is_left(text):
    assert text == redacted({"captured/some.txt": text}).files["captured/some.txt"].decode()


def test_a_host_that_is_called_like_a_numa_node_does_not_rename_the_node():
    path = "sys/devices/system/node/node1/meminfo"
    tree = redacted({path: "Node 1 MemTotal: 1 kB", "captured/dmesg.txt": "node1 kernel: hello"}, host="node1")

    assert {path, "captured/dmesg.txt"} == tree.files.keys()
    assert b"host-1 kernel: hello" == tree.files["captured/dmesg.txt"]


@pytest.mark.parametrize("host", ["npu", "docker", "node"])
def test_a_host_called_as_readers_call_things_does_not_hide_them(host):
    files = {"captured/npu-smi-info.txt": f"| npu-smi 25.5.2 | {host}", "proc/self/cgroup": "0::/docker/x node"}

    assert files == {path: text.decode() for path, text in redacted(files, host=host).files.items()}


def test_a_serial_number_that_is_a_pci_address_does_not_hide_the_address_elsewhere():
    files = {"captured/dmesg.txt": "usb usb1: SerialNumber: 0000:c1:00.0\nroot=UUID=a1b2c3d4e5 iommu=pt\n"}

    assert "usb usb1: SerialNumber: 0000:c1:00.0\nroot=UUID=serial-1 iommu=pt\n" == (
        redacted(files).files["captured/dmesg.txt"].decode()
    )


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("MASTER_ADDR=trainer7\0RANK=0", "MASTER_ADDR=host-1\0RANK=0"),
        ("gcc (builder@buildbox) 12.3", "gcc (user-1@host-1) 12.3"),
        ("/system.slice/getty@tty1.service", "/system.slice/getty@tty1.service"),
        ("http://eve:hunter2@mirror:8080/simple", "http://user-1:secret-1@host-1:8080/simple"),
        ("Authorization: Bearer abc.def.ghi", "Authorization: Bearer secret-1"),
        ("curl --token s3cr3t -v", "curl --token secret-1 -v"),
    ],
)
def test_words_are_told_by_what_stands_beside_them(text, hidden):
    assert hidden == redacted({"captured/some.txt": text}).files["captured/some.txt"].decode()


def test_bytes_that_are_no_text_survive():
    content = bytes(range(256))
    redactor = Redactor()

    assert content == _redacted(Tree(files={"lib.so": content}), redactor).files["lib.so"]


@pytest.mark.parametrize(
    "piece", ["a", "a.", ":", "token", "token.", "serial", "f:", "1.1", "a@", "://", "-----BEGIN "]
)
def test_a_file_of_one_endless_line_is_redacted_too(piece):
    text = piece * (100_000 // len(piece)) + "!"

    assert redacted({"captured/some.txt": text}).files.keys() == {"captured/some.txt"}


# What tells of somebody, as other files and tools write it, and the part that must not survive.
PLANTS = [
    ("path /home/张伟/models is gone", "张伟"),
    ("open /home/李 娜/x", "李"),
    ("HOME=/home/王小明\0ASCEND_PROCESS_LOG_PATH=/home/王小明/log", "王小明"),
    ("IPv6 fe80::1a2b:3c4d:5e6f:7788%eth0 lost", "1a2b:3c4d"),
    ("[2001:4860:4860::8888]:443", "4860"),
    ("addr 2400:da00::6666", "6666"),
    ("::ffff:10.1.2.3", "10.1.2.3"),
    ("mac AA:BB:CC:11:22:33", "AA:BB:CC"),
    ("mac aabb.cc11.2233 cisco", "aabb.cc11.2233"),
    ("enx0a1b2c3d4e5f: link up", "0a1b2c3d4e5f"),
    ("GID fe80:0000:0000:0000:0e42:a1ff:fe12:3456", "0e42:a1ff"),
    ("Capabilities: [148] Device Serial Number 94-6d-ae-03-00-b5-11-22", "94-6d-ae"),
    ("\t\t[SN] Serial number: MT2211X00123", "MT2211X00123"),
    ("\tSerial Number: 2102313ABCDE\n\tUUID: 4c4c4544-0039-3010-8052-b4c04f563533", "2102313ABCDE"),
    ("\tAsset Tag: CORP-00123", "CORP-00123"),
    ("\tSKU Number: x\n\tBoard Serial Number:   BS12345678", "BS12345678"),
    ("        Serial Number                  : 033EFS10N1000001", "033EFS10N1000001"),
    ("        VDie ID                        : 4f2a11c0 20c0a11b 3f3a 0032 11", "4f2a11c0"),
    ("        NDie ID : 1F2E3D4C", "1F2E3D4C"),
    ("        Board ID : 0x65\n   PCIe Slot SN : SLOT77AB", "SLOT77AB"),
    ("nfs: server filer01 not responding, still trying", "filer01"),
    ("nfs: server filer-db.corp.example.com OK", "filer-db"),
    ("systemd[1]: Set hostname to <train-node-07>.", "train-node-07"),
    ("systemd[1]: Hostname set to <train-node-07>.", "train-node-07"),
    ("Nov 29 10:00:00 gpu-rack-12 kernel: ascend lost", "gpu-rack-12"),
    ("2026-11-29T10:00:00+08:00 gpu-rack-12 kernel: x", "gpu-rack-12"),
    ("Linux version 5.10 (build@buildhost-33) (gcc)", "buildhost-33"),
    ("Initialized drbd for node1.cluster.internal", "node1.cluster.internal"),
    ("GET https://api.x.cn/v1?access_token=abcd1234efgh&x=1", "abcd1234efgh"),
    ("https://oauth2:glpat-abcdef12345@git.corp/x.git", "glpat-abcdef12345"),
    ("curl -H 'Authorization: token ghx_secretvalue123'", "ghx_secretvalue123"),
    ("curl -H 'X-Api-Key: zzsecret123'", "zzsecret123"),
    ("--api-key sk-abcdef0123456789", "sk-abcdef0123456789"),
    ("--hf-token=hf_abcdefghijklmnop", "hf_abcdefghijklmnop"),
    ("export HUGGING_FACE_HUB_TOKEN='hf_AAAAbbbbcccc'", "hf_AAAAbbbbcccc"),
    ("password: hunter2", "hunter2"),
    ("密码：hunter2", "hunter2"),
    ("密码=hunter2", "hunter2"),
    ("mysql -u root -pHunter2x", "Hunter2x"),
    ("redis://:s3cr3tpw@cache:6379/0", "s3cr3tpw"),
    ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI"),
    ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    ("user: zhangwei logged in", "zhangwei"),
    ("session opened for user zhangwei(uid=1001)", "zhangwei"),
    ("Accepted publickey for zhangwei from 10.1.2.3 port 22", "zhangwei"),
    ("sudo: zhangwei : TTY=pts/0", "zhangwei"),
    ("/data/home/zhangwei/x /Users/zhangwei /home2/zhangwei/y", "zhangwei"),
    ("mail zhang.wei@corp.com", "zhang.wei"),
    ("--static_resource_list=node:10.20.30.40,1.0,CPU,8", "10.20.30.40"),
    ("[ERROR] HCCL(1,x): listen on ip[10.20.30.40] host[trainhost9]", "10.20.30.40"),
    ("iSCSI iqn.2026-01.com.corp.storage:disk1", "corp"),
    ("wwn 0x5000c500a1b2c3d4", "5000c500a1b2c3d4"),
    ("nqn.2014-08.org.nvmexpress:uuid:4c4c4544-0039-3010-8052-b4c04f563533", "4c4c4544"),
]


@pytest.mark.parametrize(("text", "secret"), PLANTS)
def test_what_tells_of_somebody_does_not_survive(text, secret):
    assert secret not in whole(redacted({"captured/dmesg.txt": text}))
