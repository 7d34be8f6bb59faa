"""What the documentation says can be followed: its links lead somewhere, its commands parse, its names exist."""

import ast
import csv
import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import click
import pytest

from tests.unit.test_layers import LAYERS
from trivet.cli import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "tests/fixtures/*/*.md")
    for path in ROOT.glob(pattern)
)  # fmt: skip
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
# What a reader is shown to type, by the language of the block: every line, or those after the prompt where there is
# output too. A block without a language is taken for a shell's.
PROMPTS = {"": "", "sh": "", "bash": "", "console": "$ "}
VARIABLES = re.compile(r"^(?:[A-Z_]+=\S+ )*")
MODULE = re.compile(r"trivet(?:\.\w+)+")
FILE = re.compile(r"(?:trivet|native|tests|docs|benchmarks)/[\w./*-]*|Makefile|pyproject\.toml")


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def fences(page: str) -> list[tuple[str, str]]:
    """(language, content) of each fenced block, the lines that a backslash continues joined."""
    return [(language, body.replace("\\\n", " ")) for _, language, body in FENCE.findall(text_of(page))]


def typed(page: str, program: str) -> list[list[str]]:
    """The words after `program` of each command line that begins with it."""
    shown = [line.removeprefix(PROMPTS[language]) for language, body in fences(page) if language in PROMPTS
             for line in body.splitlines() if line.startswith(PROMPTS[language])]  # fmt: skip
    commands = [VARIABLES.sub("", line) for line in shown]
    return [words_of(line)[1:] for line in commands if line.split()[:1] == [program]]


def prose(page: str) -> str:
    return FENCE.sub("", text_of(page))


@cache
def anchors(page: str) -> set[str]:
    """As GitHub makes them of headings."""
    found: set[str] = set()
    for heading in HEADING.findall(prose(page)):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(slug)
    return found


def broken_links(page: str) -> Iterator[str]:
    for link in LINK.findall(CODE.sub("", prose(page))):
        if re.match(r"https?:|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(str(target.resolve().relative_to(ROOT)))):
            yield link


def words_of(line: str) -> list[str]:
    """The words of a command line, without a comment and what is piped or redirected."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
    lexer.whitespace_split = True
    words = list(lexer)
    ends = [i for i, word in enumerate(words) if word[0] in "|&;>" or (words[i + 1 : i + 2] == [">"] and word == "2")]
    return words[: min(ends, default=len(words))]


def check_command(group: click.Group, words: list[str]) -> None:
    """Raises click's usage error where the words name no command, no option, or not the arguments it takes."""
    context = click.Context(group, info_name="trivet")
    if words[0] in ("--help", "--version"):
        return None
    _, command, rest = group.resolve_command(context, words)
    assert command is not None
    if isinstance(command, click.Group):
        return check_command(command, rest)
    if rest == ["--help"]:
        return None
    inner = click.Context(command, parent=context, info_name=command.name)
    values, surplus, _ = command.make_parser(inner).parse_args(list(rest))
    if surplus:
        raise click.UsageError(f"{command.name} takes no {surplus}")
    for param in command.params:
        value = values.get(str(param.name))
        if isinstance(param, click.Argument) and param.required and not isinstance(value, str):
            raise click.UsageError(f"{command.name} wants {param.name}")
        if isinstance(value, str) and not isinstance(param.type, click.Path):  # paths are the reader's own
            param.type_cast_value(inner, value)
    return None


def is_module_or_name(dotted: str) -> bool:
    """A module, or something that the longest module of the path has."""
    path = ROOT / dotted.replace(".", "/")
    if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file():
        return True  # not imported: what a device needs may be absent here
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            found = getattr(found, name, None)
        return found is not None
    return False


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", NAMES)
def test_every_link_leads_somewhere(page: str) -> None:
    assert [] == list(broken_links(page))


@pytest.mark.parametrize("page", NAMES)
def test_every_command_shown_is_one(page: str) -> None:
    for words in typed(page, "trivet"):
        check_command(cli, words)


@pytest.mark.parametrize("line", ["uq MODEL", "up MODEL --kv-memry 1GiB", "up", "convert A B C", "up M --port many"])
def test_a_command_that_is_none_is_found(line: str) -> None:
    with pytest.raises(click.UsageError):
        check_command(cli, words_of(line))


@pytest.mark.parametrize("page", NAMES)
def test_every_make_target_shown_is_in_the_makefile(page: str) -> None:
    targets = re.findall(r"^([a-z][\w-]*):", text_of("Makefile"), re.MULTILINE)
    shown = [words[0] for words in typed(page, "make")]
    shown += [code.split()[1] for code in CODE.findall(prose(page)) if code.startswith("make ")]

    assert [] == [target for target in shown if target not in targets]


@pytest.mark.parametrize("page", NAMES)
def test_every_block_says_what_it_is(page: str) -> None:
    assert {language for language, _ in fences(page)} <= {*PROMPTS, "text", "python", "json"}


@pytest.mark.parametrize("page", NAMES)
def test_every_module_and_file_named_exists(page: str) -> None:
    named = CODE.findall(prose(page))
    modules = [name for name in named if MODULE.fullmatch(name) and not name.endswith((".json", ".md"))]
    files = [name for name in named if FILE.fullmatch(name)]

    assert [] == [name for name in modules if not is_module_or_name(name)]
    assert [] == [name for name in files if not list(ROOT.glob(name))]


@pytest.mark.parametrize("page", NAMES)
def test_python_shown_compiles_and_imports_what_there_is(page: str) -> None:
    for language, body in fences(page):
        if language != "python":
            continue
        for node in ast.walk(ast.parse(body)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "trivet":
                for alias in node.names:
                    assert is_module_or_name(f"{node.module}.{alias.name}"), alias.name


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), ["README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        links = {link.partition("#")[0] for link in LINK.findall(prose(page)) if not re.match(r"https?:", link)}
        found = {str(((ROOT / page).parent / link).resolve().relative_to(ROOT)) for link in links if link}
        waiting += [name for name in found - reached if name.endswith(".md")]

    assert [] == [page for page in NAMES if page.startswith("docs/") and page not in reached]


@pytest.mark.parametrize("name", ["cli.md", "operators.md", "metrics.md", "settings.md", "checks.md"])
def test_generated_pages_are_what_the_code_says_now(name: str) -> None:
    assert generator().pages()[name] == text_of(f"docs/reference/{name}"), "run: make docs"


def test_the_drawing_of_the_layers_is_the_one_that_is_enforced() -> None:
    drawing = re.search(r"## Layers.*?```text\n(.*?)```", text_of("docs/develop/architecture.md"), re.DOTALL)
    assert drawing is not None
    drawn = [line.split()[0] for line in drawing[1].splitlines()]

    assert [name for names in reversed(LAYERS) for name in names] == drawn


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_ratios_of_a_readme_are_those_of_the_committed_rows(page: str) -> None:
    ratios: dict[str, list[str]] = {}
    with (ROOT / "benchmarks/results/compare.csv").open(encoding="utf-8", newline="") as opened:
        for row in csv.DictReader(opened):
            ratios.setdefault(row["peer"], []).append(f"{float(row['ratio']):.2f}")
    shown = re.findall(r"^\|[^|\n]+\|((?: \d+\.\d\d \|)+)$", text_of(page), re.MULTILINE)

    assert list(ratios.values()) == [each.replace("|", "").split() for each in shown]


def test_both_readmes_show_the_same_commands() -> None:
    english, chinese = ([typed(page, program) for program in ("trivet", "make", "pip")]
                        for page in ("README.md", "README.zh.md"))  # fmt: skip

    assert english == chinese
