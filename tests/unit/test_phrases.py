"""Everything the doctor says can be said in Chinese, with the same values."""

import ast
import re
from pathlib import Path
from string import Formatter
from typing import get_args

import pytest

import trivet.driver
from trivet.base.findings import Outcome
from trivet.driver.facts import FolderPurpose
from trivet.driver.npu_facts import CommandOutcome
from trivet.driver.phrases import say, translations
from trivet.driver.redact import Kind

DRIVER = Path(trivet.driver.__file__).parent
SAYING = {"judge", "passed", "note", "warning", "failed", "unknown", "unread", "not_asked", "fault", "_on_host",
          "_same", "say", "speak", "_section", "Phrase"}  # fmt: skip
# A remedy that begins so is a command, which is the same in every language.
COMMAND = re.compile(
    r"(sudo|docker run|export|source|pip|npu-smi|echo|cpupower|sysctl|lspci|ulimit|env|grep|dmesg|lsmod|unset|df|ps|"
    r"ss|nc|tail|ray|kubectl|timedatectl|python3|vllm|asys|tar|taskset|systemctl|"
    r"sync|hccn_tool|trivet|\{python\} -m) |TRIVET_CACHE="
)


def strings(path: Path) -> set[str]:
    return {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)
            and isinstance(node.value, str)}  # fmt: skip


def said(path: Path) -> set[str]:
    """The phrases among the positional arguments of what speaks, whole or in one arm of a choice."""
    found, tree = set(), ast.parse(path.read_text())
    constants = {target.id: node.value for node in ast.walk(tree) if isinstance(node, ast.Assign)
                 for target in node.targets if isinstance(target, ast.Name)}  # fmt: skip
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        function = call.func
        is_saying = isinstance(function, ast.IfExp) or (isinstance(function, ast.Name) and function.id in SAYING)
        arguments = call.args if is_saying else []
        values = [constants.get(each.id, each) if isinstance(each, ast.Name) else each
                  for argument in arguments for each in arms(argument)]  # fmt: skip
        found |= {each.value for each in values if isinstance(each, ast.Constant)}
    return {each for each in found if isinstance(each, str)}


def arms(node: ast.expr) -> list[ast.expr]:
    return [*arms(node.body), *arms(node.orelse)] if isinstance(node, ast.IfExp) else [node]


FILES = [
    *sorted((DRIVER / "checklist").glob("*.py")), *sorted((DRIVER / "layout").glob("*.py")),
    *(DRIVER / f"{name}.py" for name in ("report", "summary", "want", "check", "watch", "formats", "topology")),
    DRIVER.parent / "cli" / "host.py",
]  # fmt: skip
# What is said by a variable: outcomes, kinds of what is hidden, which the code has as words of a type.
WORDS = {*get_args(Outcome), *get_args(CommandOutcome), *get_args(Kind), *get_args(FolderPurpose)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_phrase_has_its_translation(path):
    known = translations()
    phrases = {comment or command for command, _, comment in (each.partition("  # ") for each in said(path))}

    assert set() == {phrase for phrase in phrases if phrase not in known and not COMMAND.match(phrase)}


def test_no_translation_is_left_over():
    words = {part for path in FILES for text in strings(path) for part in (text, text.rpartition("  # ")[2])}

    assert set() == translations().keys() - words - WORDS


def test_every_word_that_is_said_by_a_variable_has_its_translation():
    assert set() == WORDS - translations().keys()


def test_a_translation_takes_the_values_of_its_phrase():
    def values(text):
        return sorted((name, form) for _, name, form, _ in Formatter().parse(text) if name is not None)

    assert [] == [phrase for phrase, chinese in translations().items() if values(phrase) != values(chinese)]


def test_a_value_that_is_a_phrase_is_translated_too():
    assert "无法读取环境变量" == say("zh", "{what} could not be read", {"what": "the environment"})


def test_a_command_keeps_its_words_and_its_comment_does_not():
    assert "ls x  # 在宿主机上" == say("zh", "ls {name}  # on the host", {"name": "x"})
    assert "ls x  # on the host" == say("en", "ls {name}  # on the host", {"name": "x"})
