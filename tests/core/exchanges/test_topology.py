import gc
from collections.abc import Iterable

import pytest

from smista.core import exchanges
from smista.core.exchanges import PREDECLARED, Binding, ExchangeKind, ExchangeSettings, Removed, Topology
from smista.core.exchanges.topic import TopicMatcher
from smista.exchange_errors import (
    BindingTargetNotFound,
    ExchangeCycle,
    ExchangeDiffers,
    ExchangeInternal,
    ExchangeInUse,
    ExchangeNotFound,
    ExchangeReserved,
    InvalidBinding,
    InvalidExchange,
    ReachTooWide,
)
from tests.core.exchanges.kept import count_nodes, is_empty
from tests.core.exchanges.work import lines_run
from tests.core.raised import errors_of

DIRECT = ExchangeSettings(ExchangeKind.DIRECT)
FANOUT = ExchangeSettings(ExchangeKind.FANOUT)
TOPIC = ExchangeSettings(ExchangeKind.TOPIC)
HEADERS = ExchangeSettings(ExchangeKind.HEADERS)
AUTO_DELETE = ExchangeSettings(ExchangeKind.FANOUT, auto_delete=True)


def every_queue(_name: str) -> bool:
    return True


def no_queue(_name: str) -> bool:
    return False


def with_alternate(alternate: str) -> ExchangeSettings:
    return ExchangeSettings(ExchangeKind.DIRECT, alternate=alternate)


def made(*bindings: Binding, names: Iterable[str] = "abcd", settings: ExchangeSettings = FANOUT) -> Topology:
    """A namespace with exchanges of these names and these bindings."""
    topology = Topology("shop")
    for number, name in enumerate(names, start=1):
        topology.declare(name, number, settings)
    for binding in bindings:
        assert topology.check_bind(binding, every_queue)
        topology.bind(binding)
    return topology


# Exchanges


def test_the_default_and_the_amq_exchanges_are_there_from_the_start() -> None:
    kinds = {exchange.name: exchange.settings.kind.value for exchange in Topology("shop").exchanges()}
    assert kinds == {
        "": "direct",
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.headers": "headers",
        "amq.match": "headers",
        "amq.rabbitmq.trace": "topic",
        "amq.topic": "topic",
    }
    assert all(Topology("shop").exchange(name).settings.durable for name in kinds)


def test_a_namespace_nobody_uses_holds_no_exchange() -> None:
    assert not Topology("shop")._exchanges


def test_a_declared_exchange_is_found_by_name_and_listed_in_order() -> None:
    topology = Topology("shop")
    assert topology.check_declare("orders", TOPIC) is None
    orders = topology.declare("orders", 7, TOPIC)
    assert topology.exchange("orders") is topology.find("orders") is orders
    assert (orders.name, orders.number, orders.namespace, orders.settings) == ("orders", 7, "shop", TOPIC)
    assert repr(orders) == "<Exchange 'orders' (topic) in 'shop'>"
    topology.declare("a", 8, TOPIC)
    names = [exchange.name for exchange in topology.exchanges()]
    assert names == sorted([*PREDECLARED, "orders", "a"])


def test_declaring_again_with_the_same_settings_is_fine() -> None:
    topology = made(names=["orders"])
    assert topology.check_declare("orders", FANOUT) is topology.exchange("orders")
    assert topology.check_declare("amq.topic", TOPIC) is topology.exchange("amq.topic")


@pytest.mark.parametrize(
    ("setting", "asked", "shown"),
    [
        ("kind", ExchangeSettings(ExchangeKind.TOPIC), "kind 'fanout', not 'topic'"),
        ("durable", ExchangeSettings(ExchangeKind.FANOUT, durable=False), "durable true, not false"),
        (
            "auto_delete",
            ExchangeSettings(ExchangeKind.FANOUT, auto_delete=True),
            "auto_delete false, not true",
        ),
        ("internal", ExchangeSettings(ExchangeKind.FANOUT, internal=True), "internal false, not true"),
        ("alternate", ExchangeSettings(ExchangeKind.FANOUT, alternate="x"), "alternate none, not 'x'"),
    ],
)
def test_declaring_again_otherwise_names_the_difference(setting: str, asked: ExchangeSettings, shown: str) -> None:
    with pytest.raises(ExchangeDiffers, match=shown) as caught:
        made(names=["orders"]).check_declare("orders", asked)
    assert caught.value.setting == setting
    assert (caught.value.present, caught.value.asked) == (getattr(FANOUT, setting), getattr(asked, setting))
    with pytest.raises(ExchangeDiffers):
        Topology("shop").check_declare("amq.fanout", asked)


def test_names_of_the_broker_cannot_be_declared() -> None:
    for name in ("", "amq.mine"):
        with pytest.raises(ExchangeReserved) as caught:
            Topology("shop").check_declare(name, DIRECT)
        assert caught.value.exchange == name


@pytest.mark.parametrize("name", ["x" * 256, "è" * 128, "\ud800" * 100])
def test_a_name_must_fit_an_amqp_short_string(name: str) -> None:
    with pytest.raises(InvalidExchange):
        Topology("shop").check_declare(name, DIRECT)
    assert Topology("shop").check_declare("è" * 127, DIRECT) is None


def test_an_exchange_that_is_not_there_is_an_error_or_none() -> None:
    topology = Topology("shop")
    assert topology.find("nope") is None
    for ask in (topology.exchange, topology.check_delete, topology.check_publish):
        with pytest.raises(ExchangeNotFound, match=r"'nope'.*'shop'.*declare it first"):
            ask("nope")


def test_only_exchanges_may_send_to_an_internal_exchange() -> None:
    topology = made(names=["open"])
    topology.declare("inner", 9, ExchangeSettings(ExchangeKind.FANOUT, internal=True))
    assert topology.check_publish("open").name == "open"
    assert topology.check_publish("").name == ""
    with pytest.raises(ExchangeInternal, match="inner"):
        topology.check_publish("inner")
    assert topology.check_bind(Binding.to_exchange("open", "inner"), no_queue)


def test_exchanges_of_the_broker_cannot_be_deleted() -> None:
    for name in (*PREDECLARED, "amq.other"):
        with pytest.raises(ExchangeReserved, match="cannot be deleted"):
            Topology("shop").check_delete(name)


def test_delete_if_unused_refuses_while_bindings_lead_from_the_exchange() -> None:
    topology = made(Binding.to_queue("a", "q"), Binding.to_exchange("b", "c"))
    with pytest.raises(ExchangeInUse, match="has 1 binding and") as caught:
        topology.check_delete("a", if_unused=True)
    assert caught.value.binding_count == 1
    assert topology.check_delete("a") is topology.exchange("a")
    # A binding that only leads to it does not count, as in RabbitMQ.
    assert topology.check_delete("c", if_unused=True) is topology.exchange("c")


# Bindings


def test_a_binding_shows_up_from_both_ends() -> None:
    to_queue = Binding.to_queue("a", "q", "key", {"x": [1]})
    to_exchange = Binding.to_exchange("a", "b")
    topology = made(to_queue, to_exchange)
    assert tuple(topology.exchange("a").bindings) == (to_queue, to_exchange)
    assert topology.bindings_of_queue("q") == (to_queue,)
    assert topology.bindings_of_exchange("b") == (to_exchange,)
    assert list(topology.bindings()) == [to_queue, to_exchange]
    assert topology.bindings_of_queue("b") == topology.bindings_of_exchange("q") == ()


def test_a_queue_and_an_exchange_of_one_name_are_two_destinations() -> None:
    topology = made(Binding.to_queue("a", "b"), Binding.to_exchange("a", "b"))
    topology.remove_queue("b")
    assert tuple(topology.exchange("a").bindings) == (Binding.to_exchange("a", "b"),)


def test_binding_again_is_fine_and_makes_one_binding() -> None:
    binding = Binding.to_exchange("a", "b", "k", {"x": 1})
    topology = made(binding)
    assert not topology.check_bind(Binding.to_exchange("a", "b", "k", {"x": 1}), every_queue)
    topology.bind(binding)
    assert tuple(topology.exchange("a").bindings) == (binding,)
    topology.unbind(binding)
    assert tuple(topology.exchange("a").bindings) == ()
    assert not topology.exchange("a").target_counts


def test_unbinding_what_is_not_bound_is_no_error() -> None:
    topology = made()
    for binding in (Binding.to_queue("a", "q"), Binding.to_queue("nope", "q")):
        assert not topology.check_unbind(binding)
        assert topology.unbind(binding) == Removed()


def test_unbind_says_what_went() -> None:
    binding = Binding.to_queue("a", "q")
    topology = made(binding)
    assert topology.check_unbind(binding)
    assert topology.unbind(binding) == Removed((binding,))


def test_both_ends_of_a_binding_must_exist() -> None:
    topology = made()
    with pytest.raises(ExchangeNotFound, match="'nope'"):
        topology.check_bind(Binding.to_queue("nope", "q"), every_queue)
    with pytest.raises(BindingTargetNotFound, match=r"^Queue 'q'.*'a'.*'shop'") as caught:
        topology.check_bind(Binding.to_queue("a", "q"), no_queue)
    assert (caught.value.kind, caught.value.name) == ("queue", "q")
    with pytest.raises(BindingTargetNotFound, match=r"^Exchange 'nope'"):
        topology.check_bind(Binding.to_exchange("a", "nope"), every_queue)


def test_the_default_exchange_takes_no_bindings() -> None:
    topology = made()
    for binding in (
        Binding.to_queue("", "q", "q"),
        Binding.to_exchange("a", ""),
        Binding.to_exchange("", "a"),
    ):
        with pytest.raises(ExchangeReserved, match="default exchange"):
            topology.check_bind(binding, every_queue)
        with pytest.raises(ExchangeReserved, match="default exchange"):
            topology.check_unbind(binding)


@pytest.mark.parametrize("how", ["some", "ALL", "", 1, True, None, ["all"]])
def test_a_headers_exchange_refuses_an_unknown_x_match(how: object) -> None:
    topology = made(settings=HEADERS)
    with pytest.raises(InvalidBinding, match=r"x-match.*all, any, all-with-x, any-with-x"):
        topology.check_bind(Binding.to_queue("a", "q", "", {"x-match": how, "h": 1}), every_queue)
    for fine in ("all", "any", "all-with-x", "any-with-x"):
        assert topology.check_bind(Binding.to_queue("a", "q", "", {"x-match": fine}), every_queue)


def test_other_exchanges_do_not_mind_x_match() -> None:
    assert made().check_bind(Binding.to_queue("a", "q", "", {"x-match": "some"}), every_queue)


@pytest.mark.parametrize("key", ["x" * 256, "è" * 128])
def test_a_key_must_fit_an_amqp_short_string(key: str) -> None:
    with pytest.raises(InvalidBinding, match="255 bytes"):
        made().check_bind(Binding.to_queue("a", "q", key), every_queue)
    assert made().check_bind(Binding.to_queue("a", "q", key[:127]), every_queue)


def test_a_topic_pattern_has_a_bounded_number_of_hashes_between_words() -> None:
    topology = made(settings=ExchangeSettings(ExchangeKind.TOPIC))
    with pytest.raises(InvalidBinding, match="9 times # between words, and 8"):
        topology.check_bind(Binding.to_queue("a", "q", ".".join(["#", "a"] * 9)), every_queue)
    assert topology.check_bind(Binding.to_queue("a", "q", ".".join(["#", "a"] * 8)), every_queue)
    assert topology.check_bind(Binding.to_queue("a", "q", ".".join(["#"] * 100)), every_queue)
    assert made().check_bind(Binding.to_queue("a", "q", ".".join(["#", "a"] * 9)), every_queue)


def test_arguments_that_cannot_be_compared_make_no_binding() -> None:
    for build in (Binding.to_queue, Binding.to_exchange):
        with pytest.raises(InvalidBinding, match=r"'a'.*set"):
            build("a", "q", "", {"h": {1}})


@pytest.mark.parametrize("value", ["x" * (64 << 10), ["y" * 100] * 700, {"deep": {"z": b"z" * (64 << 10)}}], ids=type)
def test_arguments_take_no_more_than_64_kib(value: object) -> None:
    for build in (Binding.to_queue, Binding.to_exchange):
        with pytest.raises(InvalidBinding, match=r"arguments take \d+ bytes, and 65536 is the most: leave some out"):
            made().check_bind(build("a", "b", "", {"h": value}), every_queue)
        assert made().check_bind(build("a", "b", "", {"h": "x" * 65_000}), every_queue)


# Circles


def test_an_exchange_cannot_be_bound_to_itself() -> None:
    with pytest.raises(ExchangeCycle) as caught:
        made().check_bind(Binding.to_exchange("a", "a"), every_queue)
    assert caught.value.path == ("a", "a")


def test_a_binding_that_would_close_a_circle_is_refused_and_the_path_named() -> None:
    topology = made(Binding.to_exchange("a", "b"), Binding.to_exchange("b", "c"), Binding.to_exchange("a", "d"))
    with pytest.raises(ExchangeCycle, match=r"binding from exchange 'c' to 'a'.*c -> a -> b -> c") as caught:
        topology.check_bind(Binding.to_exchange("c", "a"), every_queue)
    assert caught.value.path == ("c", "a", "b", "c")
    assert topology.check_bind(Binding.to_exchange("d", "c"), every_queue)  # two ways to one end are no circle


def test_a_circle_is_open_again_when_one_of_its_steps_is_gone() -> None:
    first, second = Binding.to_exchange("a", "b", "1"), Binding.to_exchange("a", "b", "2")
    topology = made(first, second)
    back = Binding.to_exchange("b", "a")
    topology.unbind(first)
    with pytest.raises(ExchangeCycle):
        topology.check_bind(back, every_queue)
    topology.unbind(second)
    assert topology.check_bind(back, every_queue)


def test_an_alternate_closes_circles_too() -> None:
    topology = Topology("shop")
    with pytest.raises(ExchangeCycle, match="alternate from exchange 'a' to 'a'"):
        topology.check_declare("a", with_alternate("a"))
    topology.declare("a", 1, with_alternate("b"))  # b may come later
    with pytest.raises(ExchangeCycle) as caught:
        topology.check_declare("b", with_alternate("a"))
    assert caught.value.path == ("b", "a", "b")
    topology.declare("b", 2, FANOUT)
    topology.declare("c", 3, FANOUT)
    topology.bind(Binding.to_exchange("b", "c"))
    with pytest.raises(ExchangeCycle) as caught:
        topology.check_bind(Binding.to_exchange("c", "a"), every_queue)
    assert caught.value.path == ("c", "a", "b", "c")


# Removal


def test_deleting_a_queue_takes_its_bindings_and_no_others() -> None:
    mine = [Binding.to_queue("a", "q", "1"), Binding.to_queue("b", "q"), Binding.to_queue("a", "q", "2")]
    topology = made(*mine, Binding.to_queue("a", "r"))
    assert topology.remove_queue("q") == Removed(tuple(mine))
    assert topology.remove_queue("q") == Removed()
    assert list(topology.bindings()) == [Binding.to_queue("a", "r")]
    assert topology.exchange("a").matcher.match("") == ("r",)
    assert is_empty(topology.exchange("b").matcher)


def test_deleting_an_exchange_takes_bindings_from_it_and_to_it() -> None:
    arriving, leaving = Binding.to_exchange("a", "b"), Binding.to_queue("b", "q")
    onward, other = Binding.to_exchange("b", "c"), Binding.to_queue("a", "q")
    topology = made(arriving, leaving, onward, other)
    assert topology.delete("b") == Removed((leaving, onward, arriving))
    assert topology.find("b") is None
    assert list(topology.bindings()) == [other]
    assert topology.bindings_of_queue("q") == (other,)
    assert topology.bindings_of_exchange("c") == ()
    assert not topology.exchange("a").target_counts


def test_an_auto_delete_exchange_is_reported_when_the_last_binding_from_it_goes() -> None:
    first, second = Binding.to_queue("a", "q"), Binding.to_queue("a", "r")
    topology = made(first, second, settings=AUTO_DELETE)
    assert topology.unbind(first).unused == ()
    assert topology.unbind(second).unused == ("a",)
    assert topology.find("a") is not None  # the caller notes a record, then deletes it
    topology.bind(first)
    assert topology.remove_queue("q").unused == ("a",)


def test_an_auto_delete_exchange_that_was_never_bound_stays() -> None:
    topology = made(Binding.to_exchange("a", "b"), settings=AUTO_DELETE)
    topology.bind(Binding.to_queue("a", "q"))
    assert topology.unbind(Binding.to_exchange("a", "b")).unused == ()


def test_exchanges_that_are_not_auto_delete_are_never_reported() -> None:
    topology = made(Binding.to_queue("a", "q"))
    assert topology.remove_queue("q").unused == ()


def test_auto_delete_goes_on_from_exchange_to_exchange() -> None:
    topology = made(
        Binding.to_exchange("a", "b"),
        Binding.to_exchange("b", "c"),
        Binding.to_queue("c", "q"),
        Binding.to_queue("c", "q", "again"),
        settings=AUTO_DELETE,
    )
    waiting = list(topology.remove_queue("q").unused)
    gone = []
    while waiting:
        name = waiting.pop(0)
        gone.append(name)
        waiting += topology.delete(name).unused
    assert gone == ["c", "b", "a"]
    assert [exchange.name for exchange in topology.exchanges() if exchange.name not in PREDECLARED] == ["d"]


def test_deleting_a_queue_costs_its_own_bindings_and_no_others() -> None:
    def work(others: int) -> int:
        topology = made(settings=TOPIC)
        for number in range(3):
            topology.bind(Binding.to_queue("a", "mine", f"orders.{number}.*"))
        for number in range(others):
            topology.bind(Binding.to_queue("a", f"other{number}", f"orders.{number}.*"))
            topology.bind(Binding.to_queue("b", f"other{number}"))
        return lines_run(lambda: topology.remove_queue("mine"))

    assert work(others=3_000) == work(others=3)


def test_bindings_made_and_removed_leave_nothing_behind() -> None:
    topology = made(settings=TOPIC)
    for number in range(200):
        topology.bind(Binding.to_queue("a", f"q{number}", f"x.{number}.#"))
        topology.bind(Binding.to_exchange("a", "b", f"#.{number}"))
    for number in range(200):
        topology.remove_queue(f"q{number}")
        topology.unbind(Binding.to_exchange("a", "b", f"#.{number}"))
    source = topology.exchange("a")
    assert isinstance(source.matcher, TopicMatcher)
    assert count_nodes(source.matcher) == 1
    assert not source.bindings
    assert not source.target_counts
    assert not topology._bindings_to


def test_only_so_many_exchanges_are_looked_at_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [Binding.to_exchange(source, target) for source, target in ("ab", "bc", "cd")]
    topology = made(*chain, names="abcde")
    assert topology.check_bind(Binding.to_exchange("e", "a"), no_queue)
    assert not topology.looks_at_headers("a")
    monkeypatch.setattr("smista.core.exchanges.topology.STEPS_MAX", 2)
    with pytest.raises(ReachTooWide, match="more than 2 exchanges"):
        topology.check_bind(Binding.to_exchange("e", "a"), no_queue)
    # Then every message has its headers looked at, which is slower and never wrong.
    assert topology.looks_at_headers("a")


def test_a_topology_has_no_reference_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        topology = made(Binding.to_exchange("a", "b"), Binding.to_queue("b", "q", "", {"x": [1]}))
        topology.exchanges()
        topology.delete("b")
        del topology
        assert gc.collect() == 0
    finally:
        gc.enable()


# Errors


def test_every_error_has_a_code_of_its_own_and_a_sentence_that_names_the_cure() -> None:
    examples = [
        ExchangeNotFound("x", "shop"),
        InvalidExchange("x", "its name is too long", "shorten it"),
        ExchangeDiffers("x", "shop", setting="durable", present=True, asked=False),
        ExchangeReserved("amq.x", "deleted", "leave it"),
        ExchangeInternal("x", "shop"),
        ExchangeInUse("x", "shop", 2),
        ExchangeCycle(["x", "y", "x"], "binding"),
        BindingTargetNotFound("queue", "q", "shop", "x"),
        InvalidBinding("x", "q", "its key is too long", "shorten it"),
        ReachTooWide("x", "queues", 5_000),
    ]
    assert {type(example) for example in examples} == errors_of(exchanges)
    assert len({example.code for example in examples}) == len(examples)
    for example in examples:
        sentence = str(example)
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert ": " in sentence
        assert "x'" in sentence
