from hypothesis import given
from hypothesis import strategies as st

from trivet.framework.engine.stops import StopMatcher


def cut(stops, pieces):
    """What a matcher shows of the pieces, and the stop string that ended them."""
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        text, stop = matcher.push(piece)
        shown += text
        if stop is not None:
            return shown, stop
    return shown + matcher.flush(), None


def slow_cut(stops, text):
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def test_a_stop_string_is_found_across_token_boundaries():
    assert ("one", "\n\nUser:") == cut(("\n\nUser:",), ["one\n", "\nUs", "er", ": two"])


def test_text_that_may_become_a_stop_string_waits():
    matcher = StopMatcher(("STOP",))

    assert ("go ", None) == matcher.push("go ST")
    assert ("", None) == matcher.push("O")
    assert ("STO", None) == matcher.push("ST")
    assert "ST" == matcher.flush()


def test_text_without_stop_strings_passes_at_once():
    assert ("abc", None) == StopMatcher(()).push("abc")


def test_the_stop_string_complete_first_wins_and_of_two_the_longer():
    assert ("ab", "c") == cut(("abcd", "c"), ["abcd"])
    assert ("a", "bc") == cut(("c", "bc"), ["abc"])


texts = st.text("abc", max_size=4)


@given(st.lists(st.text("abc", min_size=1, max_size=5), max_size=3), st.lists(texts, max_size=12))
def test_how_text_is_cut_into_tokens_does_not_change_where_it_ends(stops, pieces):
    assert slow_cut(tuple(stops), "".join(pieces)) == cut(tuple(stops), pieces)
