from smista.core.exchanges.direct import DirectMatcher
from tests.core.exchanges.kept import is_empty


def test_a_message_goes_where_its_key_is_bound_and_nowhere_else() -> None:
    exchange: DirectMatcher[str] = DirectMatcher()
    exchange.bind("errors", "error")
    exchange.bind("all", "error")
    exchange.bind("all", "info")
    assert exchange.match("error") == ("errors", "all")
    assert exchange.match("info") == ("all",)
    assert exchange.match("debug") == ()
    assert exchange.match("") == ()


def test_wildcards_mean_nothing() -> None:
    exchange: DirectMatcher[str] = DirectMatcher()
    exchange.bind("q", "orders.#")
    assert exchange.match("orders.new") == ()
    assert exchange.match("orders.#") == ("q",)


def test_a_destination_bound_by_two_keys_is_reached_by_each_until_that_one_is_unbound() -> None:
    exchange: DirectMatcher[str] = DirectMatcher()
    exchange.bind("q", "a")
    exchange.bind("q", "b")
    exchange.unbind("q", "a")
    assert exchange.match("a") == ()
    assert exchange.match("b") == ("q",)
    exchange.unbind("q", "b")
    assert is_empty(exchange)
