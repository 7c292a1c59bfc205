import gc
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smista.core.exchanges.topic import CACHED_DESTINATIONS_MAX, CACHED_KEYS_MAX, TopicMatcher, normal_form
from tests.core.exchanges.kept import count_nodes, is_empty
from tests.core.exchanges.work import lines_run


def bound(*patterns: str) -> TopicMatcher[str]:
    """An exchange with each pattern bound to a destination of that name."""
    exchange: TopicMatcher[str] = TopicMatcher()
    for pattern in patterns:
        exchange.bind(pattern, pattern)
    return exchange


def fits(pattern: list[str], key: list[str]) -> bool:
    """The rule, as plainly as it can be written."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(fits(pattern[1:], key[taken:]) for taken in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and fits(pattern[1:], key[1:])


def words(key: str) -> list[str]:
    return key.split(".") if key else []


@pytest.mark.parametrize(
    ("key", "queues"),
    [
        ("orders.new", {"all-orders", "new-orders", "audit-log"}),
        ("orders.urgent", {"all-orders", "urgent-processing", "audit-log"}),
        ("orders.cancelled", {"all-orders", "audit-log"}),
        ("payments.urgent", {"urgent-processing", "audit-log"}),
        ("orders", {"audit-log"}),
        ("orders.new.urgent", {"audit-log"}),
    ],
)
def test_the_vectors_of_seed_004(key: str, queues: set[str]) -> None:
    exchange: TopicMatcher[str] = TopicMatcher()
    exchange.bind("all-orders", "orders.*")
    exchange.bind("new-orders", "orders.new")
    exchange.bind("urgent-processing", "*.urgent")
    exchange.bind("audit-log", "#")
    assert set(exchange.match(key)) == queues


@pytest.mark.parametrize("key", ["orders", "orders.new", "orders.new.urgent", "orders."])
def test_a_hash_at_the_end_takes_no_words_or_many(key: str) -> None:
    assert bound("orders.#").match(key) == ("orders.#",)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("#.urgent", ["urgent", "a.urgent", "a.b.urgent", "urgent.urgent"], ["urgent.a", "a", ""]),
        ("a.#.z", ["a.z", "a.b.z", "a.b.c.z", "a.z.z"], ["a", "z", "a.z.b", "b.a.z"]),
        ("*", ["a", "orders"], ["", "a.b", "."]),
        ("*.*", ["a.b", "."], ["a", "a.b.c"]),
        ("a.*.c", ["a.b.c", "a..c"], ["a.c", "a.b.b.c"]),
        ("#", ["", "a", "a.b", "..."], []),
        ("#.*", ["a", "a.b", "."], [""]),
        ("*.#", ["a", "a.b"], [""]),
        ("#.#", ["", "a", "a.b.c"], []),
        ("*.#.*", ["a.b", "a.b.c"], ["a", ""]),
        ("a.b#", ["a.b#"], ["a.b", "a.bc"]),
        ("a*.b", ["a*.b"], ["ax.b"]),
    ],
)
def test_wildcards_stand_for_whole_words_anywhere(pattern: str, matching: list[str], others: list[str]) -> None:
    exchange = bound(pattern)
    assert [key for key in matching + others if exchange.match(key)] == matching


def test_empty_words_are_words_and_the_empty_key_has_none() -> None:
    assert bound("a.*.b").match("a..b")
    assert bound("*.*").match(".")
    assert not bound("*").match("")
    assert bound("").match("")
    assert not bound("").match(".")
    assert not bound("a").match("a.")
    assert bound("a.").match("a.")


def test_a_wildcard_in_a_routing_key_is_an_ordinary_word() -> None:
    exchange = bound("a.b", "a.*", "a.#")
    assert set(exchange.match("a.*")) == {"a.*", "a.#"}
    assert set(exchange.match("a.#")) == {"a.*", "a.#"}
    assert exchange.match("#") == ()


def test_a_destination_met_by_several_patterns_comes_once() -> None:
    exchange: TopicMatcher[str] = TopicMatcher()
    for pattern in ("a.b", "a.*", "#", "*.b", "#.#"):
        exchange.bind("q", pattern)
    assert exchange.match("a.b") == ("q",)
    assert {match.key for match in exchange.explain("a.b")} == {"a.b", "a.*", "#", "*.b", "#.#"}


@pytest.mark.parametrize(
    "pattern",
    [
        "#.#.#.a",
        ".".join(["#"] * 120),
        ".".join(["#", "*"] * 60),
        ".".join(["#", "a"] * 60),
        ".".join(["#", "a"] * 60 + ["b"]),
    ],
)
def test_no_pattern_makes_a_long_key_slow(pattern: str) -> None:
    # A search that turns back would still be at it tomorrow; 4,000 lines of Python are run per word at most.
    exchange = bound(pattern)
    key = ".".join(["a"] * 128)
    assert lines_run(lambda: exchange.match(key)) < 128 * 4_000
    assert bool(exchange.match(key)) is not pattern.endswith("b")


def test_many_patterns_of_wildcards_alone_make_no_key_slow() -> None:
    choice = random.Random(1).choice
    exchange = bound(*(".".join(choice("*#") for _ in range(120)) for _ in range(2_000)))
    assert lines_run(lambda: exchange.match(".".join(["a"] * 120))) < 128 * 4_000


@pytest.mark.parametrize(
    ("pattern", "normal"),
    [
        ("#.#", "#"),
        ("#.*", "*.#"),
        ("*.#.*.#", "*.*.#"),
        ("#.a.#.#.*.b", "#.a.*.#.b"),
        ("a.b#.*", "a.b#.*"),
        ("", ""),
        (".#.", ".#."),
    ],
)
def test_wildcards_in_a_row_have_a_normal_form(pattern: str, normal: str) -> None:
    assert normal_form(pattern) == normal


def test_two_spellings_of_a_pattern_are_two_bindings() -> None:
    exchange: TopicMatcher[str] = TopicMatcher()
    assert exchange.bind("q", "#.*")
    assert exchange.bind("q", "*.#")
    assert not exchange.bind("q", "#.*")
    assert {match.key for match in exchange.explain("a")} == {"#.*", "*.#"}
    assert exchange.unbind("q", "*.#")
    assert not exchange.unbind("q", "*.#")
    assert exchange.match("a") == ("q",)
    assert exchange.unbind("q", "#.*")
    assert exchange.match("a") == ()
    assert is_empty(exchange)


def test_a_key_of_128_words_and_a_trie_as_deep_are_no_trouble() -> None:
    deep = ".".join(["w"] * 128)
    exchange = bound(deep, ".".join(["*"] * 128))
    assert exchange.match(deep) == (deep, ".".join(["*"] * 128))
    assert exchange.match(deep + ".w") == ()
    very_deep = ".".join(["w"] * 50_000)
    exchange.bind("q", very_deep)
    assert exchange.match(very_deep) == ("q",)
    exchange.unbind("q", very_deep)
    assert count_nodes(exchange) == 1 + 128 + 128


def test_the_work_of_a_match_does_not_grow_with_the_bindings_elsewhere() -> None:
    def work(others: int) -> int:
        exchange = bound("orders.*.new", "#.new", "orders.eu.#")
        for number in range(others):
            exchange.bind("other", f"orders.eu.{number}")
            exchange.bind("other", f"{number}.eu.new")
            exchange.bind("other", f"#.{number}.#")
        return lines_run(lambda: exchange.match("orders.eu.new"))

    assert work(others=10_000) == work(others=10)


def test_unbinding_leaves_no_node_behind() -> None:
    exchange: TopicMatcher[str] = TopicMatcher()
    patterns = [f"{a}.{b}.{c}" for a in ("x", "*", "#") for b in ("y", "*", "#") for c in ("", "z", "#")]
    for _ in range(3):
        for pattern in patterns:
            exchange.bind("q", pattern)
            exchange.bind("r", pattern)
        assert count_nodes(exchange) > 20
        for pattern in patterns:
            exchange.unbind("q", pattern)
        assert set(exchange.match("x.y.z")) == {"r"}
        for pattern in reversed(patterns):
            exchange.unbind("r", pattern)
        assert count_nodes(exchange) == 1
        assert is_empty(exchange)


def test_unbinding_prunes_no_node_that_another_pattern_needs() -> None:
    exchange = bound("a.b.c", "a.b", "a.*.c", "a.#")
    exchange.unbind("a.b.c", "a.b.c")
    assert set(exchange.match("a.b")) == {"a.b", "a.#"}
    exchange.unbind("a.b", "a.b")
    assert set(exchange.match("a.b.c")) == {"a.*.c", "a.#"}
    exchange.unbind("a.#", "a.#")
    assert exchange.match("a.b.c") == ("a.*.c",)


def test_a_failed_unbind_changes_nothing() -> None:
    exchange = bound("a.b.c")
    assert not exchange.unbind("a.b.c", "a.b")
    assert not exchange.unbind("other", "a.b.c")
    assert count_nodes(exchange) == 4
    assert exchange.match("a.b.c") == ("a.b.c",)


def test_an_answer_that_was_remembered_is_forgotten_when_bindings_change() -> None:
    exchange = bound("a.*")
    assert exchange.match("a.b") == ("a.*",)
    assert exchange.match("x.y") == ()
    exchange.bind("q", "#")
    assert exchange.match("a.b") == ("a.*", "q")
    assert exchange.match("x.y") == ("q",)
    exchange.unbind("a.*", "a.*")
    assert exchange.match("a.b") == ("q",)


def test_what_is_remembered_is_bounded() -> None:
    exchange = bound("#")
    for number in range(3 * CACHED_KEYS_MAX):
        assert exchange.match(f"key.{number}") == ("#",)
        assert len(exchange._cache) <= CACHED_KEYS_MAX
    for number in range(CACHED_DESTINATIONS_MAX):
        exchange.bind(f"q{number}", "#")
    assert len(exchange.match("a")) == CACHED_DESTINATIONS_MAX + 1
    assert not exchange._cache


def test_a_trie_has_no_reference_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        exchange = bound("a.b.c", "a.*", "#", "a.#.b")
        exchange.match("a.b")
        exchange.explain("a.b")
        del exchange
        assert gc.collect() == 0
    finally:
        gc.enable()


some_word = st.sampled_from(["a", "b", ""])
some_key = st.lists(some_word, max_size=6).map(".".join)
some_pattern = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)
some_change = st.tuples(st.sampled_from(["bind", "bind", "unbind"]), st.sampled_from("qr"), some_pattern)


@settings(deadline=None)
@given(st.lists(some_change, max_size=30), st.lists(some_key, min_size=1, max_size=8))
def test_the_trie_agrees_with_the_plain_rule_after_any_changes(
    changes: list[tuple[str, str, str]], keys: list[str]
) -> None:
    exchange: TopicMatcher[str] = TopicMatcher()
    bindings: set[tuple[str, str]] = set()
    for change, destination, pattern in changes:
        is_there = (destination, pattern) in bindings
        if change == "bind":
            assert exchange.bind(destination, pattern) is not is_there
            bindings.add((destination, pattern))
        else:
            assert exchange.unbind(destination, pattern) is is_there
            bindings.discard((destination, pattern))
        for key in keys:
            meeting = {binding for binding in bindings if fits(words(binding[1]), words(key))}
            found = exchange.match(key)
            assert len(found) == len(set(found))
            assert set(found) == {destination for destination, _ in meeting}
            reasons = exchange.explain(key)
            assert {(reason.destination, reason.key) for reason in reasons} == meeting
            assert len(reasons) == len(meeting)
    for destination, pattern in bindings:
        exchange.unbind(destination, pattern)
    assert count_nodes(exchange) == 1
