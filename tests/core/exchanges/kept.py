"""What a matcher keeps in memory."""

import pickle
from typing import Any

from smista.core.exchanges.matcher import Matcher
from smista.core.exchanges.topic import TopicMatcher


def is_empty(matcher: Matcher[Any]) -> bool:
    """Whether it is as a new one, but for the answers it has at hand."""
    return _bindings(matcher) == _bindings(type(matcher)())


def _bindings(matcher: Matcher[Any]) -> list[bytes]:
    return [pickle.dumps(getattr(matcher, slot)) for slot in vars(type(matcher))["__slots__"] if slot != "_cache"]


def count_nodes(matcher: TopicMatcher[Any]) -> int:
    """How many nodes its trie has, the root included."""
    count, waiting = 0, [matcher._root]
    while waiting:
        node = waiting.pop()
        count += 1
        waiting += (node.words or {}).values()
        waiting += [each for each in (node.one, node.many) if each is not None]
    return count
