import json
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_model import TINY
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, processors

from trivet.base.errors import CheckpointError, RequestError
from trivet.framework.model.chat_template import ChatTemplate
from trivet.framework.model.tokenizer import Tokenizer
from trivet.framework.model.tokenizer_files import TokenizerFiles, read_tokenizer_files, write_tokenizer_files
from trivet.framework.model.tokenizer_merges import joined_merges

FILES = read_tokenizer_files(TINY / "llama", {})
TOKENIZER = Tokenizer(FILES)
LIBRARY = Library.from_buffer(FILES.tokenizer)
QUESTION = [{"role": "user", "content": "What is 17 + 25?"}]


def files(tokenizer=FILES.tokenizer, template=None, generation=None, **tokenizer_config):
    return TokenizerFiles(tokenizer, tokenizer_config, template, generation or {})


def render(template, messages=QUESTION, **variables):
    return ChatTemplate(files(template=template, bos_token={"content": "<s>"}, eos_token="</s>")).render(
        messages, **variables
    )


def sentencepiece():
    """A tokenizer of the older kind: spaces as ▁, bytes as <0x0A>."""
    vocab = {"<s>": 0, "▁a": 1, "b": 2, "▁": 259, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    library = Library(models.BPE(vocab, [], byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return library


@given(st.text())
def test_text_survives_the_round_trip(text):
    assert text == TOKENIZER.decode(TOKENIZER.encode(text, add_special=True), skip_special=False)


@given(st.lists(st.integers(0, 511), max_size=60), st.booleans())
def test_any_tokens_stream_to_the_text_that_the_tokenizers_package_gives_for_all(ids, skip_special):
    stream = TOKENIZER.stream(skip_special)
    pieces = [stream.push(i) for i in ids]

    assert LIBRARY.decode(ids, skip_special_tokens=skip_special) == "".join(pieces) + stream.flush()


@given(st.text("ab\n é🎉"))
def test_so_do_the_tokens_of_a_text_in_byte_fallback(text):
    library = sentencepiece()
    tokenizer = Tokenizer(files(library.to_str().encode()))
    ids = library.encode(text).ids

    assert library.decode(ids) == tokenizer.decode(ids)


@given(st.lists(st.integers(0, 300), max_size=40))
def test_byte_tokens_that_are_no_text_do_not_stop_a_stream(ids):
    tokenizer = Tokenizer(files(sentencepiece().to_str().encode()))
    bytes_of_all = b"".join(tokenizer.token_bytes(i) for i in ids)

    assert bytes_of_all.decode(errors="replace").removeprefix(" ") == tokenizer.decode(ids)


@pytest.mark.parametrize("text", ["\ud800", "a\udcff"])
def test_half_a_character_has_no_tokens(text):
    for add_special in (False, True):
        with pytest.raises(RequestError, match="the text is none that has tokens"):
            TOKENIZER.encode(text, add_special=add_special)


def test_a_character_comes_whole_or_not_yet():
    stream = TOKENIZER.stream()
    ids = TOKENIZER.encode("é🎉", add_special=False)

    assert 6 == len(ids)
    assert ["", "é", "", "", "", "🎉"] == [stream.push(i) for i in ids]
    assert "" == stream.flush()


def test_an_incomplete_character_is_shown_at_the_end():
    stream = TOKENIZER.stream()
    first = TOKENIZER.encode("🎉", add_special=False)[0]

    assert "" == stream.push(first)
    assert "\ufffd" == stream.flush()
    assert "" == stream.flush()


@given(st.text())
def test_the_bytes_of_tokens_are_the_bytes_of_the_text(text):
    assert text.encode() == b"".join(TOKENIZER.token_bytes(i) for i in TOKENIZER.encode(text, add_special=False))


def test_tokens_by_themselves():
    half = TOKENIZER.encode("é", add_special=False)[0]

    assert "<|user|>" == TOKENIZER.token_text(4)
    assert " be" == TOKENIZER.token_text(TOKENIZER.encode(" be", add_special=False)[0])
    assert (b"\xc3", "\ufffd") == (TOKENIZER.token_bytes(half), TOKENIZER.token_text(half))
    assert (b"", "") == (TOKENIZER.token_bytes(99_999), TOKENIZER.token_text(99_999))
    assert [b"<s>", b" a", b"b", b"\n"] == [
        Tokenizer(files(sentencepiece().to_str().encode())).token_bytes(i) for i in (0, 1, 2, 3 + 10)
    ]


@pytest.mark.parametrize("token", ["<0xyz>", "<0x +>", "<0x1>", "<0x1>>", "<0x\n1>"])
def test_a_token_that_only_looks_like_a_byte_is_its_own_text(token):
    library = Library(models.BPE({"a": 0, token: 1}, []))

    assert token.encode() == Tokenizer(files(library.to_str().encode())).token_bytes(1)


def test_special_tokens_are_left_out_of_text_unless_wanted():
    ids = [0, *TOKENIZER.encode("be", add_special=False), 1]

    assert "be" == TOKENIZER.decode(ids)
    assert "<bos>be<eos>" == TOKENIZER.decode(ids, skip_special=False)


def test_every_published_end_token_ends():
    assert frozenset({1}) == TOKENIZER.eos_ids
    assert frozenset({1, 4, 5}) == Tokenizer(files(generation={"eos_token_id": [4, 5]}, eos_token="<eos>")).eos_ids
    assert frozenset() == Tokenizer(files()).eos_ids


def with_bos_template():
    library = Library.from_buffer(FILES.tokenizer)
    library.post_processor = processors.TemplateProcessing("<bos> $A", None, [("<bos>", 0)])
    return library.to_str().encode()


@pytest.mark.parametrize(
    ("tokenizer", "config", "has_bos"),
    [
        (FILES.tokenizer, {}, False),
        (FILES.tokenizer, {"add_bos_token": True}, True),
        (with_bos_template(), {}, True),
        (with_bos_template(), {"add_bos_token": True}, True),
        (with_bos_template(), {"add_bos_token": False}, False),
    ],
)
def test_bos_is_added_once_as_the_files_say(tokenizer, config, has_bos):
    tokenizer = Tokenizer(files(tokenizer, bos_token="<bos>", **config))
    plain = tokenizer.encode("be", add_special=False)

    assert [0] * has_bos + plain == tokenizer.encode("be", add_special=True)
    assert 0 == tokenizer.bos_id


def test_settings_left_over_from_training_do_not_cut_a_prompt():
    library = Library.from_buffer(FILES.tokenizer)
    library.enable_truncation(4)
    library.enable_padding(length=64)
    settled = Tokenizer(files(library.to_str().encode()))
    text = "a somewhat longer prompt"

    assert TOKENIZER.encode(text, add_special=True) == settled.encode(text, add_special=True)


def test_sizes_are_those_of_the_file():
    assert 512 == TOKENIZER.vocab_size


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b"\xff", b'{"model": {"type": "no"}}'])
def test_a_tokenizer_that_is_none_is_refused(text):
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be used"):
        Tokenizer(files(text))


def test_an_end_token_that_is_no_id_is_refused():
    with pytest.raises(CheckpointError, match="eos_token_id is '</s>'"):
        Tokenizer(files(generation={"eos_token_id": "</s>"}))


@given(
    st.lists(st.tuples(st.text("ab #", max_size=3), st.text("ab\né", max_size=2)), unique=True, max_size=6),
    st.booleans(),
)
def test_merges_as_texts_make_the_same_tokenizer(pairs, is_marked):
    pairs = pairs + [("#version", "s")] * is_marked
    tokens = dict.fromkeys(token for left, right in pairs for token in (left, right, left + right))
    vocab = {token: i for i, token in enumerate(tokens)}
    published = Library(models.BPE(vocab, pairs)).to_str()

    assert published == Library.from_buffer(joined_merges(published.encode())).to_str()


@pytest.mark.parametrize("merges", [[["a b", "c"]], [["#version", "s"]], ["a b"], [["a", 1]], [["a", "\ud800"]], []])
def test_merges_that_texts_would_not_tell_stay_as_they_are(merges):
    tokenizer = json.dumps({"model": {"merges": merges}}).encode()

    assert tokenizer == joined_merges(tokenizer)


def test_a_published_tokenizer_gets_its_merges_as_texts_and_what_is_none_is_left_alone():
    assert "Ġ t" == json.loads(joined_merges(FILES.tokenizer))["model"]["merges"][0]
    assert LIBRARY.to_str() == Library.from_buffer(joined_merges(FILES.tokenizer)).to_str()
    assert (b"{}", b"\xff") == (joined_merges(b"{}"), joined_merges(b"\xff"))


def test_files_are_written_as_they_were_read(tmp_path):
    original = files(template="{{ 1 }}\r\n{{ 2 }}", generation={"eos_token_id": [1, 2]}, bos_token="é")
    write_tokenizer_files(original, tmp_path)

    assert original == read_tokenizer_files(tmp_path, {})


def test_a_conversation_is_rendered_with_special_tokens_and_the_turn_to_come():
    assert "<bos><|user|>What is 17 + 25?<eos>" == ChatTemplate(FILES).render(QUESTION, add_generation_prompt=False)
    assert "<bos><|user|>What is 17 + 25?<eos><|assistant|>" == ChatTemplate(FILES).render(QUESTION)


def test_blocks_leave_no_blanks_and_loops_can_be_left():
    template = (
        "{%- for m in messages %}\n    {% if loop.index > 1 %}\n    {% break %}\n    {% endif %}\nX\n{% endfor %}"
    )

    assert "X\n" == render(template, [*QUESTION, *QUESTION])


def test_json_is_not_escaped_for_html():
    assert '{"a": "<é>"}' == render("{{ tool | tojson }}", tool={"a": "<é>"})


def test_what_templates_of_the_field_call_is_there():
    assert "<s> x </s> 4" == render(
        "{{ bos_token }} {% generation %}x{% endgeneration %} {{ eos_token }} {{ strftime_now('%Y') | length }}"
    )


def test_a_template_can_refuse_with_its_own_words():
    with pytest.raises(RequestError, match="refuses the messages: roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")

    assert "messages" == caught.value.parameter


@pytest.mark.parametrize("name", ["self", "scope", "variables", "template", ""])
def test_a_variable_may_have_any_name(name):
    assert "1" == ChatTemplate(files(template="{{ 1 }}")).render(QUESTION, **{name: 2})


def test_a_variable_nested_without_end_is_an_error_of_the_request():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RequestError, match="refuses the messages"):
        render("{{ deep | tojson }}", deep=deep)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_a_template_that_fails_or_reaches_out_of_its_sandbox_is_an_error_of_the_request(template):
    with pytest.raises(RequestError, match="refuses the messages"):
        render(template)


def test_a_model_without_a_template_says_what_to_use():
    with pytest.raises(RequestError, match=r"no chat template\n.*/v1/completions"):
        render(None)


def test_a_template_that_does_not_compile_is_an_error_of_the_model():
    with pytest.raises(CheckpointError, match="does not compile"):
        render("{% for %}")


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 2**40)
    | st.floats(allow_nan=False)
    | st.sampled_from(["<bos>", "x", "{{ 1 }}"])
)
ANYTHING = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
    st.sampled_from(["name", "template", "content"]), inner, max_size=2), max_leaves=5)  # fmt: skip
KEYS = st.sampled_from(["bos_token", "eos_token", "add_bos_token", "chat_template", "bos_token_id", "eos_token_id"])


@given(st.dictionaries(KEYS, ANYTHING), st.dictionaries(KEYS, ANYTHING))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_files_beside_a_tokenizer_say_is_refused_or_understood(tmp_path, config, generation):
    (tmp_path / "tokenizer.json").write_bytes(FILES.tokenizer)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)

    with suppress(CheckpointError, RequestError):
        found = read_tokenizer_files(tmp_path, {})
        tokenizer = Tokenizer(found)
        ids = tokenizer.encode(ChatTemplate(found).render(QUESTION), add_special=True)
        assert all(0 <= i < tokenizer.vocab_size for i in ids)
        write_tokenizer_files(found, tmp_path)
        assert found == read_tokenizer_files(tmp_path, {})


@pytest.mark.parametrize("text", [r'{"chat_template": "\ud800"}', r'{"a": ["\udfff"]}', r'{"\uD83D": 1}'])
def test_half_a_character_of_utf_16_is_no_text(tmp_path, text):
    (tmp_path / "tokenizer.json").write_bytes(FILES.tokenizer)
    (tmp_path / "tokenizer_config.json").write_text(text)

    with pytest.raises(CheckpointError, match="not readable as JSON"):
        read_tokenizer_files(tmp_path, {})


def test_a_character_in_two_halves_is_one(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(FILES.tokenizer)
    (tmp_path / "tokenizer_config.json").write_text(r'{"chat_template": "\ud83d\ude00"}')

    assert "😀" == read_tokenizer_files(tmp_path, {}).chat_template
