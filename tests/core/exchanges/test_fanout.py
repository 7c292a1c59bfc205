from smista.core.exchanges.fanout import FanoutMatcher
from smista.core.exchanges.matcher import Match


def test_a_message_goes_everywhere_once_whatever_the_keys() -> None:
    exchange: FanoutMatcher[str] = FanoutMatcher()
    exchange.bind("a", "")
    exchange.bind("b", "some.key")
    exchange.bind("b", "another.key")
    assert exchange.match("") == exchange.match("some.key") == exchange.match("x") == ("a", "b")
    assert exchange.explain("x") == [
        Match("a", "", ()),
        Match("b", "some.key", ()),
        Match("b", "another.key", ()),
    ]
