"""`trivet.driver.explain`: what a pasted text tells, and what is never said of it."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.base.errors import ConfigError
from trivet.driver.explain import lines, marks, pasted
from trivet.driver.explain.lines import codes_in, lines_of
from trivet.driver.explain.marks import marks_of_line
from trivet.driver.explain.pasted import read_pasted
from trivet.driver.explain.patterns import Pattern, pattern_of
from trivet.driver.explain.tables import CONFIDENCES, LAYERS, Rule, codes, meaning_of, reading, rules
from trivet.driver.explain.verdict import explain
from trivet.driver.explain.wording import as_data, as_text

ROOT = Path(__file__).parents[2]
CASES = [json.loads(line) for line in (ROOT / "tests/fixtures/explain/cases.jsonl").read_text().splitlines()]
KEYS = ["layer", "cause", "confidence", "first_error", "codes", "fix", "next_evidence", "sources"]

excerpts = st.sampled_from([case["excerpt"] for case in CASES])
anything = st.text(max_size=2000) | st.lists(excerpts, max_size=3).map("\n".join)
healthy = st.lists(
    st.sampled_from(
        [
            "INFO 03-20 02:24:17 [default_loader.py:262] Loading weights took 3.10 seconds",
            "| 0     910B4               | OK            | 87.1        42                0    / 0             |",
            "WARNING 03-20 02:24:17 _custom_ops.py:19] Failed to import from vllm._C with ModuleNotFoundError",
            "# nvidia-smi is not used here",
            "",
        ]
    ),
    max_size=20,
)


def explained(text: str) -> tuple[str | None, str]:
    verdict = explain(text)
    return (verdict.rule.id if verdict.rule else None), verdict.confidence


# --- What holds for every text


@given(anything)
def test_any_text_gets_a_verdict_of_the_promised_form(text: str) -> None:
    data = as_data(explain(text), "en")

    assert list(data) == KEYS
    assert data["layer"] in (*LAYERS, "unknown")
    assert data["confidence"] in CONFIDENCES
    assert (data["cause"] is None) == (data["confidence"] == "none")
    assert data["fix"] or data["next_evidence"] or data["cause"]
    assert as_text(explain(text), "zh")


@given(anything)
def test_the_first_error_stands_in_the_text(text: str) -> None:
    first = explain(text).first_error

    assert first is None or first.text in re.sub(
        r"\x1b\[[0-9;?]*[A-Za-z]|[\0\u200b\ufeff]", "", text.replace("\\n", "\n")
    )


@given(excerpts, st.data())
def test_a_damaged_excerpt_never_crashes(excerpt: str, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(excerpt)))
    end = data.draw(st.integers(begin, len(excerpt)))
    inserted = data.draw(st.text(max_size=20))

    assert explain(excerpt[:begin] + inserted + excerpt[end:]).confidence in CONFIDENCES


@given(excerpts, healthy)
def test_healthy_lines_in_front_change_no_verdict(excerpt: str, before: list[str]) -> None:
    assert explained(excerpt) == explained("\n".join([*before, excerpt]))


@given(excerpts)
def test_a_text_is_explained_the_same_with_colours_and_windows_line_ends(excerpt: str) -> None:
    coloured = "\r\n".join(f"\x1b[31m{line}\x1b[0m" for line in excerpt.splitlines())

    assert explained(excerpt) == explained(coloured)


# How a line looks that came by way of another program, a terminal or a page.
CARRIERS: dict[str, Callable[[str], str]] = {
    "docker compose": lambda line: f"vllm-1  | {line}",
    "a pod": lambda line: f"2026-11-02T10:00:00.123456789Z stderr F {line}",
    "journalctl": lambda line: f"Nov  2 10:00:00 node01 vllm[4711]: {line}",
    "vLLM": lambda line: f"(EngineCore pid=118) (Worker_TP0 pid=200) ERROR 11-02 10:00:05 [core.py:702] {line}",
    "Ray": lambda line: f"\x1b[36m(RayWorkerWrapper pid=3011, ip=192.0.2.7)\x1b[0m {line}",
    "torchrun": lambda line: f"[rank3]: {line}",
    "mpirun": lambda line: f"[1,7]<stderr>: {line}",
    "a mail": lambda line: f"> {line}",
    "JSON": lambda line: json.dumps({"log": f"{line}\n", "stream": "stderr"}, ensure_ascii=False),
    "a web page": lambda line: line.replace(" ", "\u00a0"),
    "a Chinese keyboard": lambda line: line.replace(": ", "：").replace(", ", "，"),
}


@given(st.sampled_from(sorted(CARRIERS)), excerpts)
def test_who_carried_a_text_changes_no_verdict(carrier: str, excerpt: str) -> None:
    assert explained(excerpt) == explained("\n".join(map(CARRIERS[carrier], excerpt.splitlines())))


@given(excerpts)
def test_what_ranks_say_between_one_another_changes_no_verdict(excerpt: str) -> None:
    woven = [f"(Worker_TP{rank} pid={100 + rank}) {line}" for line in excerpt.splitlines() for rank in range(4)]

    assert explained(excerpt) == explained("\n".join(woven))


def test_words_begin_where_words_begin_and_identifiers_hold_words() -> None:
    assert not pattern_of("bus error").finds(lines_of("| 0xa419321c | lp pmbus error |")[0])
    assert pattern_of("bus error").finds(lines_of("pmbus fine, bus error")[0])
    assert pattern_of("hostregister").finds(lines_of("rtsHostRegister failed")[0])


def test_what_no_rule_knows_gets_the_layer_of_its_family_and_no_cause() -> None:
    assert ("cann_reports", "none") == explained("[ERROR] TBE(1,python):2026-01-01-00:00:00 [x.cc:1] no luck")
    assert "operator" == explain("error code is 507077\nEngine core initialization failed").rule.layer
    assert (None, "none") == explained("error code is 999999")


@pytest.mark.parametrize("text", ["", " ", "\n" * 1000, "a" * 1_000_000, "(" * 100_000, "\0" * 999])
def test_texts_that_say_nothing_are_not_known(text: str) -> None:
    assert (None, "none") == explained(text)


def test_no_regular_expression_repeats_without_bound() -> None:
    found = [each for module in (lines, marks) for each in vars(module).values() if isinstance(each, re.Pattern)]
    unbounded = [each.pattern for each in found if re.search(r"(?<!\\)[*+]", re.sub(r"\[[^\]]*\]", "", each.pattern))]

    assert len(found) >= 8
    assert [] == unbounded


# --- Which line is the first error


def test_the_worker_that_failed_is_blamed_and_not_who_noticed() -> None:
    text = """
(EngineCore_DP0 pid=11) ERROR 01-02 10:00:07 [core.py:700] EngineCore failed to start.
(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
(Worker_TP1 pid=12) ERROR 01-02 10:00:05 [worker.py:30] OSError: [Errno 24] Too many open files: '/dev/shm/psm'
"""

    assert "too_many_open_files" == explained(text)[0]
    assert "Too many open files" in str(as_data(explain(text), "en")["first_error"])


def test_the_rank_whose_error_is_earliest_is_blamed() -> None:
    late = "[ERROR] HCCL(2,python):2025-03-01-10:02:00.000.000 EI0006: Getting socket times out"
    early = "[ERROR] HCCL(1,python):2025-03-01-10:00:00.000.000 listen on ip[10.0.0.1] and specific port[16666] fail"

    assert "hccl_port_in_use" == explained(f"{late}\n{early}")[0] == explained(f"{early}\n{late}")[0]


def test_of_chained_exceptions_the_innermost_is_blamed() -> None:
    text = """Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/torch/__init__.py", line 1, in _import_device_backends
ImportError: libhccl.so: cannot open shared object file: No such file or directory

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "app.py", line 1, in <module>
RuntimeError: Failed to load the backend extension: torch_npu
"""

    assert ("cann_not_on_path", "high") == explained(text)


def test_what_says_why_is_taken_before_what_only_says_that_within_one_incident() -> None:
    text = "RuntimeError: call aclnnAdd failed, error code is 507015\n| 3  910B3 | Critical | 90.1  50  0 / 0 |"

    assert ("health_alarm", "low") == explained(text)


def test_routine_lines_do_not_hide_the_error_that_comes_long_after_them() -> None:
    routine = (
        "INFO 01-02 10:00:05 [metrics.py:1] Avg prompt throughput: 4.0 tokens/s, Running: 1 reqs, HCCL timeout 120"
    )
    error = "RuntimeError: call aclnnAdd failed, error code is 507015"

    assert ("kernel_exception", "none") == explained("\n".join([routine] * 300 + [error]))


def test_a_routine_line_is_believed_where_the_rule_is_sure() -> None:
    text = "INFO 01-02 10:00:05 [worker.py:1] Available KV cache memory: -0.87 GiB\nKeyError: 'num_blocks'"

    assert ("no_room_for_kv", "high") == explained(text)


def test_a_later_incident_does_not_explain_the_first() -> None:
    first = "2025-03-01 10:00:00 RuntimeError: call aclnnAdd failed, error code is 507015"
    later = "2025-03-01 10:30:00 OSError: [Errno 98] Address already in use"

    assert ("kernel_exception", "none") == explained(f"{first}\n{later}")


def test_an_unexplained_error_before_it_lowers_the_confidence() -> None:
    text = "OSError: [Errno 24] Too many open files"

    assert ("too_many_open_files", "high") == explained(text)
    assert ("too_many_open_files", "medium") == explained(f"FooError: the flux went astray\n{text}")


def test_a_follow_up_alone_asks_for_what_stands_before_it() -> None:
    verdict = explain("RuntimeError: Engine core initialization failed. See root cause above.")

    assert "only_follow_ups" == verdict.rule.id if verdict.rule else False
    assert "the log before these lines" in str(as_data(verdict, "en")["next_evidence"])


def test_a_fault_of_the_framework_is_told_by_the_innermost_frame() -> None:
    frames = (
        '  File "/home/me/app.py", line 3, in main\n  File "/x/site-packages/{}/a.py", line 1, in f\nIndexError: 4\n'
    )

    assert "framework" == as_data(explain(frames.format("vllm_ascend")), "en")["layer"]
    assert "unknown" == as_data(explain(frames.format("myapp")), "en")["layer"]


def test_a_log_that_went_through_json_is_read_line_by_line() -> None:
    text = "first\nImportError: libatb.so: cannot open shared object file\nlast"

    assert explained(text) == explained(json.dumps(text))


# --- Codes and marks


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (("507015",), "NPU function error: x, error code is 507015"),
        (("-8005",), "dcmi module initialize failed. ret is -8005"),
        (("EI0006",), "Communication_Error_Get_Socket(EI0006)"),
        (("0x7020023",), "Alloc sq cq fail, stream_id=1984, retCode=0x7020023.[FUNC:Setup]"),
        (("ERR00100",), "(PID:1, Device:0, RankID:-1) ERR00100 PTA call acl api failed"),
        (("507033",), "运行检查程序报错，错误代码 507033"),
        (("MIE04E02011C",), "[MIE04E02011C] [endpoint] Failed to init engine!"),
        ((), "pid 507015 took port 107001 at 2025-08-05, E1022 13:56:16, 0x71, build 8.2.RC1"),
    ],
)
def test_codes_are_found_where_they_are_codes(found: tuple[str, ...], text: str) -> None:
    assert found == codes_in(text)


@pytest.mark.parametrize(
    ("code", "family"),
    [("EI0006", "EI0006"), ("EI0099", "EI"), ("E40021", "E40021"), ("E49999", "E4"), ("507015", "507015")],
)
def test_a_code_means_what_its_longest_family_does(code: str, family: str) -> None:
    found = meaning_of(code)

    assert found is not None and family == found.code


@pytest.mark.parametrize("code", ["507999", "5070", "E", "ZZ0001", "-9999", ""])
def test_a_code_outside_of_the_table_means_nothing(code: str) -> None:
    assert meaning_of(code) is None


OOM = "NPU out of memory. Tried to allocate {} GiB (NPU 0; 64.00 GiB total capacity; {} GiB already allocated; " \
      "0 bytes current active; {} GiB free; {} GiB reserved in total by PyTorch)"  # fmt: skip


@pytest.mark.parametrize(
    ("mark", "numbers"),
    [
        ("@held_outside", (1.0, 10.0, 0.5, 11.0)),
        ("@fragmented", (1.0, 40.0, 0.5, 63.0)),
        ("@true_shortage", (1.0, 62.0, 0.5, 63.0)),
        ("@request_too_large", (900.0, 1.0, 60.0, 2.0)),
    ],
)
def test_who_holds_the_memory_follows_from_the_numbers(mark: str, numbers: tuple[float, ...]) -> None:
    assert [mark] == marks_of_line(OOM.format(*numbers))


@given(st.tuples(*[st.floats(0, 1e6)] * 4))
def test_numbers_of_a_memory_error_give_at_most_one_mark(numbers: tuple[float, ...]) -> None:
    assert len(marks_of_line(OOM.format(*(f"{each:.2f}" for each in numbers)))) <= 1


# --- The tables


def samples(rule: Rule) -> list[str]:
    return ["\n".join(_sample(pattern) for pattern in each) for each in rule.alternatives]


def _sample(pattern: Pattern) -> str:
    if pattern.code is None:
        return " … ".join(pattern.pieces) + " x"
    forms = {"E": "E00000", "M": "MIE00E00000A", "ERR": "ERR00000", "-": "-8099", "0": "0x70299999"}
    longest = "ERR" if pattern.code.startswith("ERR") else pattern.code[0]
    code = pattern.code + forms.get(longest, "999999" if pattern.code.isdigit() else pattern.code)[len(pattern.code) :]
    return f"error code: {code}"


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.id)
def test_every_alternative_of_a_rule_can_be_the_one_that_is_named(rule: Rule) -> None:
    assert [rule.id] * len(rule.alternatives) == [explained(text)[0] for text in samples(rule)]


def test_ids_are_given_once() -> None:
    ids = [rule.id for rule in rules()]

    assert sorted(set(ids)) == sorted(ids)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.id)
def test_a_rule_speaks_both_languages_and_says_where_it_is_from(rule: Rule) -> None:
    for each in (rule.wording, *rule.fix, *rule.next_evidence):
        assert each.en.isascii() or set(each.en) <= set(map(chr, range(128))) | set("×…°–")
    assert re.search("[\u4e00-\u9fff]", rule.wording.zh)
    assert bool(rule.sources) == (rule.confidence != "none")
    assert rule.fix or rule.next_evidence


def test_every_code_speaks_both_languages() -> None:
    rows = list(csv.reader(io.StringIO((ROOT / "trivet/driver/explain/data/codes.csv").read_text())))

    assert len(codes()) == len(rows) - 1, "a code is given twice"
    assert [] == [row for row in rows[1:] if not re.search("[\u4e00-\u9fff]", row[2])]
    assert [] == [row for row in rows[1:] if not row[1].replace("°", "").isascii()]


def test_a_pattern_that_would_find_every_line_is_refused() -> None:
    with pytest.raises(AssertionError):
        pattern_of("*")


@given(st.lists(st.text("abCD é中1_'", min_size=1, max_size=6).filter(str.strip), min_size=1, max_size=4))
def test_a_pattern_finds_its_pieces_in_their_order(pieces: list[str]) -> None:
    (line,) = lines_of(f"| {' ~ '.join(pieces)} |")

    assert pattern_of("*".join(pieces)).finds(line)
    assert not pattern_of("*".join([*pieces, "~~"])).finds(line)


def test_the_noise_of_healthy_hosts_is_never_blamed() -> None:
    known = reading()
    text = "\n".join(" … ".join(pattern.pieces) + " error: failed" for pattern in known.noise)

    assert (None, "none") == explained(text)
    assert explain(text).first_error is None


# --- Where the text comes from


def test_a_file_is_read_and_another_argument_is_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("error: x\n")

    assert ("error: x\n", None) == read_pasted(str(tmp_path / "a.log"), io.BytesIO())
    assert ("error: /dev/x is gone", None) == read_pasted("error: /dev/x is gone", io.BytesIO())
    assert ("from stdin", None) == read_pasted("-", io.BytesIO(b"from stdin"))


def test_a_text_longer_than_a_file_name_is_a_text() -> None:
    assert ("x" * 100_000, None) == read_pasted("x" * 100_000, io.BytesIO())


def test_bytes_that_are_no_text_are_read(tmp_path: Path) -> None:
    (tmp_path / "core").write_bytes(bytes(range(256)))

    assert read_pasted(str(tmp_path / "core"), io.BytesIO())[0]


def test_what_is_too_long_is_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pasted, "MAX_BYTES", 10)
    text, said = read_pasted("-", io.BytesIO(b"0123456789abc"))

    assert "0123456789" == text
    assert said is not None and said.startswith("only the first")


def test_more_lines_than_are_read_are_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pasted, "MAX_LINES", 2)

    text, said = read_pasted("a\nb\nc", io.BytesIO())

    assert "a\nb" == text
    assert said is not None
    assert ("a\nb", None) == read_pasted("a\nb", io.BytesIO())


@pytest.mark.parametrize(("source", "message"), [
    ("no/such/file.log", "explain: no/such/file.log does not exist"),
    ("absent.txt", "explain: absent.txt does not exist"),
    ("", "explain: the text is empty"),
    (str(ROOT), f"explain: {ROOT} cannot be read: Is a directory"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused(source: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_pasted(source, io.BytesIO())

    assert message == caught.value.message
