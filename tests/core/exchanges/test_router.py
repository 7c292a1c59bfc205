from collections.abc import Callable
from functools import partial
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from smista.core.exchanges import (
    QUEUES_MAX,
    WORK_MAX,
    Binding,
    ExchangeKind,
    ExchangeSettings,
    Route,
    Step,
    Topology,
    Work,
    explain,
    freeze,
    route,
)
from smista.exchange_errors import ExchangeCycle, ExchangeNotFound, ReachTooWide
from tests.core.exchanges.work import lines_run

QUEUES = {"q", "r", "s", "orders"}


def topology_of(*bindings: Binding, **exchanges: str | ExchangeSettings) -> Topology:
    """A namespace with these exchanges, each given by its kind or its settings, and these bindings."""
    topology = Topology("shop")
    for number, (name, asked) in enumerate(exchanges.items(), start=1):
        settings = asked if isinstance(asked, ExchangeSettings) else ExchangeSettings(ExchangeKind(asked))
        assert topology.check_declare(name, settings) is None
        topology.declare(name, number, settings)
    for binding in bindings:
        assert topology.check_bind(binding, QUEUES.__contains__)
        topology.bind(binding)
    return topology


def with_alternate(alternate: str, kind: str = "direct") -> ExchangeSettings:
    return ExchangeSettings(ExchangeKind(kind), alternate=alternate)


def queues(
    topology: Topology,
    exchange: str,
    key: str = "",
    headers: dict[str, object] | None = None,
    *,
    extra_keys: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Where a message goes, having made sure that the dry run says the same."""
    found = route(topology, exchange, key, headers, QUEUES.__contains__, extra_keys)
    dry = explain(topology, exchange, key, headers, QUEUES.__contains__, extra_keys)
    assert found.trace == ()
    assert dry.queues == found.queues
    return found.queues


# One exchange


def test_the_default_exchange_leads_to_the_queue_the_key_names() -> None:
    topology = Topology("shop")
    assert queues(topology, "", "orders") == ("orders",)
    assert queues(topology, "", "nope") == ()
    assert queues(topology, "", "nope", extra_keys=("q", "q", "r")) == ("q", "r")


def test_each_kind_of_exchange_routes_by_its_own_rule() -> None:
    topology = topology_of(
        Binding.to_queue("d", "q", "key"),
        Binding.to_queue("f", "q"),
        Binding.to_queue("t", "q", "orders.#"),
        Binding.to_queue("h", "q", "", {"x-match": "any", "land": "it"}),
        d="direct",
        f="fanout",
        t="topic",
        h="headers",
    )
    assert queues(topology, "d", "key") == ("q",)
    assert queues(topology, "f", "whatever") == ("q",)
    assert queues(topology, "t", "orders") == ("q",)
    assert queues(topology, "h", "whatever", {"land": "it"}) == ("q",)
    for exchange in "dth":
        assert queues(topology, exchange, "other") == ()


def test_the_predeclared_exchanges_route_too() -> None:
    topology = topology_of(Binding.to_queue("amq.topic", "q", "a.*"), Binding.to_queue("amq.match", "r", "", {"h": 1}))
    assert queues(topology, "amq.topic", "a.b") == ("q",)
    assert queues(topology, "amq.match", "", {"h": 1}) == ("r",)
    assert queues(topology, "amq.headers", "", {"h": 1}) == ()
    assert queues(Topology("other"), "amq.topic", "a.b") == ()


def test_an_unknown_exchange_is_an_error() -> None:
    for ask in (route, explain):
        for extra_keys in ((), ("more",)):
            with pytest.raises(ExchangeNotFound, match="'nope'"):
                ask(Topology("shop"), "nope", "key", None, QUEUES.__contains__, extra_keys)


def test_extra_keys_add_queues_and_each_queue_comes_once() -> None:
    topology = topology_of(
        Binding.to_queue("d", "q", "a"),
        Binding.to_queue("d", "r", "b"),
        Binding.to_queue("d", "q", "b"),
        d="direct",
    )
    assert queues(topology, "d", "a", extra_keys=("b", "c")) == ("q", "r")
    assert queues(topology, "d", "c", extra_keys=("b",)) == ("r", "q")
    assert queues(topology, "d", "c", extra_keys=("e",)) == ()


# Several exchanges


def test_exchanges_bound_to_exchanges_pass_messages_on_by_their_own_rules() -> None:
    topology = topology_of(
        Binding.to_exchange("front", "back", "orders.*"),
        Binding.to_queue("front", "q", "#"),
        Binding.to_queue("back", "r", "orders.new"),
        front="topic",
        back="direct",
    )
    assert queues(topology, "front", "orders.new") == ("q", "r")
    assert queues(topology, "front", "orders.old") == ("q",)
    assert queues(topology, "front", "other") == ("q",)


def test_a_queue_reached_in_several_ways_comes_once_and_near_queues_first() -> None:
    topology = topology_of(
        Binding.to_exchange("a", "b"),
        Binding.to_exchange("a", "c"),
        Binding.to_queue("a", "s"),
        Binding.to_exchange("b", "d"),
        Binding.to_exchange("c", "d"),
        Binding.to_queue("b", "q"),
        Binding.to_queue("c", "q"),
        Binding.to_queue("c", "r"),
        Binding.to_queue("d", "orders"),
        a="fanout",
        b="fanout",
        c="fanout",
        d="fanout",
    )
    assert queues(topology, "a") == ("s", "q", "r", "orders")


def test_a_circle_cannot_be_made() -> None:
    topology = topology_of(Binding.to_exchange("a", "b"), a="fanout", b="fanout")
    with pytest.raises(ExchangeCycle):
        topology.check_bind(Binding.to_exchange("b", "a"), QUEUES.__contains__)


def test_a_circle_made_all_the_same_still_ends() -> None:
    # The primitives do not check: a log from another version must not hang the broker.
    topology = topology_of(Binding.to_exchange("a", "b"), Binding.to_queue("b", "q"), a="fanout", b="fanout")
    topology.bind(Binding.to_exchange("b", "a"))
    assert queues(topology, "a") == queues(topology, "b") == ("q",)


def test_a_thousand_exchanges_in_a_row_are_no_trouble() -> None:
    topology = Topology("shop")
    for number in range(1000):
        topology.declare(str(number), number, ExchangeSettings(ExchangeKind.FANOUT))
    for number in range(999):
        topology.bind(Binding.to_exchange(str(number), str(number + 1)))
    topology.bind(Binding.to_queue("999", "q"))
    assert queues(topology, "0") == ("q",)


def test_routes_follow_the_bindings_as_they_change() -> None:
    topology = topology_of(Binding.to_exchange("a", "b"), Binding.to_queue("b", "q"), a="fanout", b="topic")
    binding = Binding.to_queue("b", "r", "#")
    topology.bind(binding)
    assert queues(topology, "a", "k") == ("r",)
    topology.bind(Binding.to_queue("b", "q", "k"))
    assert queues(topology, "a", "k") == ("q", "r")
    topology.unbind(binding)
    assert queues(topology, "a", "k") == ("q",)
    topology.remove_queue("q")
    assert queues(topology, "a", "k") == ()
    topology.delete("b")
    assert queues(topology, "a", "k") == ()


# Alternates


def test_what_matches_nothing_goes_to_the_alternate() -> None:
    topology = topology_of(
        Binding.to_queue("main", "q", "known"),
        Binding.to_queue("lost", "r"),
        main=with_alternate("lost"),
        lost="fanout",
    )
    assert queues(topology, "main", "known") == ("q",)
    assert queues(topology, "main", "unknown") == ("r",)
    assert queues(topology, "main", "unknown", extra_keys=("known",)) == ("q",)


def test_alternates_may_be_chained() -> None:
    topology = topology_of(
        Binding.to_queue("third", "q"),
        first=with_alternate("second"),
        second=with_alternate("third"),
        third="fanout",
    )
    assert queues(topology, "first", "k") == ("q",)


def test_an_alternate_that_does_not_exist_is_passed_over() -> None:
    topology = topology_of(main=with_alternate("later"))
    assert queues(topology, "main", "k") == ()
    topology.declare("later", 9, ExchangeSettings(ExchangeKind.FANOUT))
    topology.bind(Binding.to_queue("later", "q"))
    assert queues(topology, "main", "k") == ("q",)


def test_an_exchange_that_matched_an_exchange_does_not_use_its_alternate() -> None:
    topology = topology_of(
        Binding.to_exchange("main", "dead-end", "k"),
        Binding.to_queue("lost", "q"),
        main=with_alternate("lost"),
        lost="fanout",
        **{"dead-end": "direct"},
    )
    assert queues(topology, "main", "k") == ()
    assert queues(topology, "main", "other") == ("q",)


def test_an_exchange_further_on_uses_its_own_alternate() -> None:
    topology = topology_of(
        Binding.to_exchange("front", "back"),
        Binding.to_queue("front", "q"),
        Binding.to_queue("lost", "r"),
        front="fanout",
        back=with_alternate("lost"),
        lost="fanout",
    )
    assert queues(topology, "front", "k") == ("q", "r")


def test_the_default_exchange_can_be_an_alternate() -> None:
    topology = topology_of(main=with_alternate(""))
    assert queues(topology, "main", "orders") == ("orders",)
    assert queues(topology, "main", "nope") == ()


# The dry run


def test_the_dry_run_says_which_binding_of_which_exchange_led_where() -> None:
    topology = topology_of(
        Binding.to_queue("front", "q", "orders.*"),
        Binding.to_queue("front", "q", "#", {"note": 1}),
        Binding.to_exchange("front", "back", "*.new"),
        Binding.to_queue("back", "r", "orders.new"),
        Binding.to_queue("front", "s", "payments.*"),
        front="topic",
        back="direct",
    )
    found = explain(topology, "front", "orders.new", None, QUEUES.__contains__)
    assert found.queues == ("q", "r")
    front = {
        Step("front", "binding", "queue", "q", "orders.*"),
        Step("front", "binding", "queue", "q", "#", freeze({"note": 1})),
        Step("front", "binding", "exchange", "back", "*.new"),
    }
    assert set(found.trace[:3]) == front
    assert found.trace[3:] == (Step("back", "binding", "queue", "r", "orders.new"),)


def test_the_dry_run_shows_alternates_also_missing_ones() -> None:
    topology = topology_of(main=with_alternate("second"), second=with_alternate("nope"))
    found = explain(topology, "main", "k", None, QUEUES.__contains__)
    assert found == Route(
        (),
        (
            Step("main", "alternate", "exchange", "second"),
            Step("second", "alternate", "exchange", "nope", is_missing=True),
        ),
    )


def test_the_dry_run_shows_the_default_exchange() -> None:
    found = explain(Topology("shop"), "", "q", None, QUEUES.__contains__, ["nope"])
    assert found == Route(
        ("q",), (Step("", "default", "queue", "q"), Step("", "default", "queue", "nope", is_missing=True))
    )


def test_a_binding_that_several_keys_meet_is_one_step() -> None:
    topology = topology_of(Binding.to_queue("f", "q", "k"), f="fanout")
    found = explain(topology, "f", "a", None, QUEUES.__contains__, ["b", "c"])
    assert found.trace == (Step("f", "binding", "queue", "q", "k"),)


def test_a_dry_run_can_be_sent_as_json() -> None:
    topology = topology_of(Binding.to_queue("h", "q", "k", {"a": [1, True], "b": None}), h="headers")
    found = explain(topology, "h", "x", {"a": [1, True], "b": 0}, QUEUES.__contains__)
    assert b'"via":"binding"' in msgspec.json.encode(found)


# All of it against a plain model


def plain_route(topology: Topology, start: str, key: str) -> set[str]:
    """The rule for fanout and direct exchanges that form no circle, by plain recursion."""
    exchange = topology.find(start)
    if exchange is None:
        return set()
    is_fanout = exchange.settings.kind is ExchangeKind.FANOUT
    met = [each for each in exchange.bindings if is_fanout or each.key == key]
    if not met and exchange.settings.alternate is not None:
        return plain_route(topology, exchange.settings.alternate, key)
    found: set[str] = set()
    for each in met:
        is_queue = each.destination_kind == "queue"
        found |= {each.destination} if is_queue else plain_route(topology, each.destination, key)
    return found


some_key = st.sampled_from(["", "k", "l"])
some_exchange = st.tuples(st.sampled_from(["direct", "fanout"]), st.none() | st.integers(0, 5))
some_binding = st.tuples(st.integers(0, 5), st.integers(0, 5) | st.sampled_from("qrs"), some_key)


@hypothesis_settings(deadline=None)
@given(st.lists(some_exchange, min_size=6, max_size=6), st.lists(some_binding, max_size=20), some_key)
def test_routes_agree_with_plain_recursion(
    exchanges: list[tuple[str, int | None]], bindings: list[tuple[int, int | str, str]], key: str
) -> None:
    topology = Topology("shop")
    for number, (kind, alternate) in enumerate(exchanges):
        # Steps only lead to higher numbers, so that none is refused as a circle.
        later = str(alternate) if alternate is not None and alternate > number else None
        topology.declare(str(number), number, ExchangeSettings(ExchangeKind(kind), alternate=later))
    for source, destination, binding_key in bindings:
        if isinstance(destination, str):
            topology.bind(Binding.to_queue(str(source), destination, binding_key))
        elif destination > source:
            topology.bind(Binding.to_exchange(str(source), str(destination), binding_key))
    for number in range(6):
        found = queues(topology, str(number), key)
        assert len(found) == len(set(found))
        assert set(found) == plain_route(topology, str(number), key)


@pytest.mark.parametrize("start", ["near", "far"])
def test_a_message_reaches_only_so_many_queues_unless_any_number_will_do(start: str) -> None:
    topology = topology_of(Binding.to_exchange("far", "near"), near="fanout", far="fanout")
    names = [f"q{number}" for number in range(QUEUES_MAX + 1)]
    for name in names[:-1]:
        topology.bind(Binding.to_queue("near", name))
    assert len(route(topology, start, "", None, QUEUES.__contains__).queues) == QUEUES_MAX
    topology.bind(Binding.to_queue("near", names[-1]))
    with pytest.raises(ReachTooWide, match=f"{start!r}.*more than {QUEUES_MAX} queues"):
        route(topology, start, "", None, QUEUES.__contains__)
    assert route(topology, start, "", None, QUEUES.__contains__, queues_max=None).queues == tuple(names)
    assert explain(topology, start, "", None, QUEUES.__contains__).queues == tuple(names)


# Work: it is one step, so there is only so much of it

MANY_KEYS = tuple(f"k{number}" for number in range(10_000))


@pytest.mark.parametrize("kind", ["fanout", "headers"])
def test_an_exchange_that_looks_at_no_keys_is_asked_once_however_many_there_are(kind: str) -> None:
    topology = topology_of(*(Binding.to_queue("e", name) for name in sorted(QUEUES)), e=kind)
    for ask in (route, explain):
        asked = partial(ask, topology, "e", "", {}, QUEUES.__contains__, MANY_KEYS)
        assert asked().queues == tuple(sorted(QUEUES))
        assert lines_run(asked) < 500


def test_a_key_that_is_there_twice_is_looked_up_once() -> None:
    topology = topology_of(Binding.to_queue("e", "q", "a"), e="topic")
    assert queues(topology, "e", "a", extra_keys=("a",) * 10_000) == ("q",)
    work = Work()
    route(topology, "e", "a", None, QUEUES.__contains__, ("a",) * 10_000, work=work)
    assert work.done < 10


def test_once_there_are_too_many_queues_no_more_keys_are_looked_up() -> None:
    topology = topology_of(e="direct")
    for number in range(QUEUES_MAX + 1):
        topology.bind(Binding.to_queue("e", f"q{number}", "first"))

    def ask() -> None:
        with pytest.raises(ReachTooWide, match=f"more than {QUEUES_MAX} queues"):
            route(topology, "e", "first", None, QUEUES.__contains__, MANY_KEYS)

    assert lines_run(ask) < 10 * QUEUES_MAX


def test_ten_thousand_keys_through_the_default_exchange_are_no_trouble() -> None:
    everywhere = set(MANY_KEYS)
    found = route(Topology("shop"), "", MANY_KEYS[0], None, everywhere.__contains__, MANY_KEYS, queues_max=None)
    assert found.queues == MANY_KEYS


WORDS = 11


def many_patterns() -> Topology:
    """All of them of one queue, and a key `a.a.a...` meets every one."""
    patterns = (".".join(words) for words in product("*a", repeat=WORDS))
    return topology_of(*(Binding.to_queue("e", "q", pattern) for pattern in patterns), e="topic")


def test_many_patterns_by_many_keys_are_refused_before_they_are_walked() -> None:
    topology = many_patterns()
    keys = tuple(".".join(["a"] * (WORDS - 1) + [f"y{number}"]) for number in range(2_000))
    assert route(topology, "e", keys[0], None, QUEUES.__contains__, keys[1:5]).queues == ("q",)
    for ask in (route, explain):

        def refuse(ask: Callable[..., Route] = ask) -> None:
            with pytest.raises(ReachTooWide, match=f"'e'.* take more than {WORK_MAX} steps"):
                ask(topology, "e", keys[0], None, QUEUES.__contains__, keys)

        assert lines_run(refuse) < 10 * WORK_MAX


def test_many_words_by_patterns_that_may_stand_for_any_number_are_refused() -> None:
    patterns = (f"#.a{number}.#" for number in range(50))
    topology = topology_of(*(Binding.to_queue("e", "q", pattern) for pattern in patterns), e="topic")
    key = ".".join(f"a{number % 50}" for number in range(100_000))
    with pytest.raises(ReachTooWide, match="steps"):
        route(topology, "e", key, None, QUEUES.__contains__)


def test_it_does_not_matter_to_what_a_message_takes_whether_it_was_published_before() -> None:
    topology = many_patterns()
    keys = tuple(".".join(["a"] * (WORDS - 1) + [f"y{number}"]) for number in range(60))

    def ask(*keys: str) -> tuple[bool, int]:
        work = Work()
        try:
            route(topology, "e", keys[0], None, QUEUES.__contains__, keys[1:], work=work)
        except ReachTooWide:
            return True, work.done
        return False, work.done

    for asked, is_refused in ((keys[:1], False), (keys[:2], False), (keys, True)):
        first = ask(*asked)
        assert first[0] == is_refused
        assert [ask(*asked) for _ in range(5)] == [first] * 5
    topology.bind(Binding.to_queue("e", "r", "unrelated"))
    assert ask(*keys)[0]


def test_many_bindings_that_a_header_meets_are_refused_before_they_are_tried() -> None:
    topology = topology_of(e="headers")
    for number in range(1_000):
        topology.bind(Binding.to_queue("e", "q", f"{number}", {"a": 1}))
    work = Work()
    assert route(topology, "e", "", {"a": 1}, QUEUES.__contains__, work=work).queues == ("q",)
    assert 1_000 <= work.done <= 5_000
    work.done = WORK_MAX - 999
    assert lines_run(lambda: refused(topology, work)) < 100


def refused(topology: Topology, work: Work) -> None:
    with pytest.raises(ReachTooWide, match=f"more than {WORK_MAX} steps"):
        route(topology, "e", "", {"a": 1}, QUEUES.__contains__, work=work)


def test_many_bindings_are_too_many_for_a_dry_run() -> None:
    topology = topology_of(e="fanout")
    for number in range(WORK_MAX // 5 + 1):
        topology.bind(Binding.to_queue("e", "q", f"{number}"))
    with pytest.raises(ReachTooWide, match="steps"):
        explain(topology, "e", "", None, QUEUES.__contains__)
    assert route(topology, "e", "", None, QUEUES.__contains__).queues == ("q",)
