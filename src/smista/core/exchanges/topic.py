"""The topic exchange: binding keys are patterns of words, kept in a trie.

A key is words between dots. In a pattern `*` stands for exactly one word and `#` for none or more, anywhere.
As in RabbitMQ an empty word is a word ("a..b" has three, "." has two) and the empty key has no words at all:
`#` matches it, `*` does not.

Patterns that begin alike share nodes:

    orders.*       root -- orders -- *
    orders.new                    `- new
    #.urgent            `- # -- urgent

A match walks the trie by the words of the key, as a set of nodes at a time and not as a search that turns
back, so no pattern makes it exponential. Two facts keep the walk small:

- a node has one parent, so a node reached by a word or a `*` is reached once and needs no check;
- a `#` node may take any number of words, so once reached it stays until the key ends.

So there are `reached` (new with each word) and `resting` (the `#` nodes, which only grow), and in one step
every node is looked at once. The cost is words x nodes on the path: only wildcards on the key's own path add
nodes, bindings elsewhere in the trie are never seen.

Wildcards that follow each other say only how many words there are at least, and whether there may be more: `#.*.#` is
`*.#`. The trie holds that form, so that a thousand ways to write it are one path. What can still make a walk long are
patterns in which `#` and words take turns; `HASHES_MAX` bounds these where a binding is made.

Nodes do not know their parent (no reference cycles); unbinding keeps the path it came by and prunes it
upwards.
"""

from typing import ClassVar, Generic, NamedTuple, cast

from smista.core.exchanges.arguments import Arguments
from smista.core.exchanges.matcher import (
    DESTINATIONS_PER_WORK,
    D,
    Headers,
    Held,
    Label,
    Match,
    Work,
    counted,
    hold,
    labels,
    let_go,
)

# Measured at 100,000 bindings, one in ten with a wildcard, keys of 3 words: a walk 3.3 to 5.7 us, a hit 0.06
# to 0.1 us; storing a miss adds about 0.1 us (seen at 100 bindings, lost in the noise here). When full it is
# emptied whole: simpler than choosing what to drop, and the keys in use are back after one walk each.
CACHED_KEYS_MAX = 1024
# Longer answers are not kept: 1024 keys that each reach 100,000 queues would be 800 MB.
CACHED_DESTINATIONS_MAX = 64
HASHES_MAX = 8


class _Spelled(NamedTuple):
    """Tells a binding apart whose key is written in another way than the trie holds it."""

    key: str
    arguments: Arguments


class _Node(Generic[D]):
    __slots__ = ("held", "many", "one", "pattern", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node[D]] | None = None  # made when needed: most nodes are leaves
        self.one: _Node[D] | None = None  # child for *
        self.many: _Node[D] | None = None  # child for #
        self.held: Held[D] | None = None
        self.pattern = ""  # the whole pattern, where `held` is set

    def child(self, word: str) -> "_Node[D] | None":
        if word == "*":
            return self.one
        if word == "#":
            return self.many
        return None if self.words is None else self.words.get(word)

    def grow(self, word: str) -> "_Node[D]":
        node: _Node[D] = _Node()
        if word == "*":
            self.one = node
        elif word == "#":
            self.many = node
        elif self.words is None:
            self.words = {word: node}
        else:
            self.words[word] = node
        return node

    def drop(self, word: str) -> None:
        if word == "*":
            self.one = None
        elif word == "#":
            self.many = None
        else:
            assert self.words is not None
            del self.words[word]
            if not self.words:
                self.words = None

    @property
    def is_bare(self) -> bool:
        return self.held is None and self.words is None and self.one is None and self.many is None


class TopicMatcher(Generic[D]):
    __slots__ = ("_cache", "_root")
    looks_at_keys: ClassVar[bool] = True

    def __init__(self) -> None:
        self._root: _Node[D] = _Node()
        self._cache: dict[str, tuple[tuple[D, ...], int]] = {}
        """With what it took to find out: an answer that is at hand counts as much as it did the first time. Else the
        same message would be refused or not by what others have published before."""

    def bind(self, destination: D, key: str, arguments: Arguments = ()) -> bool:
        node = self._root
        pattern = normal_form(key)
        for word in _words(pattern):
            node = node.child(word) or node.grow(word)
        if node.held is None:
            node.held, node.pattern = {}, pattern
        if not hold(node.held, destination, _label(key, pattern, arguments)):
            return False
        self._cache.clear()
        return True

    def unbind(self, destination: D, key: str, arguments: Arguments = ()) -> bool:
        path: list[tuple[_Node[D], str]] = []
        node = self._root
        pattern = normal_form(key)
        for word in _words(pattern):
            child = node.child(word)
            if child is None:
                return False
            path.append((node, word))
            node = child
        if node.held is None or not let_go(node.held, destination, _label(key, pattern, arguments)):
            return False
        self._cache.clear()
        if not node.held:
            node.held, node.pattern = None, ""
        while path and node.is_bare:
            node, word = path.pop()
            node.drop(word)
        return True

    def match(self, routing_key: str, headers: Headers = None, work: Work | None = None) -> tuple[D, ...]:
        work = Work() if work is None else work
        known = self._cache.get(routing_key)
        if known is not None:
            work.spend(known[1])
            return known[0]
        done_before = work.done
        found = self._walk(routing_key, work)
        if not found:
            destinations: tuple[D, ...] = ()
        elif len(found) == 1:
            destinations = tuple(cast("Held[D]", found[0].held))
        else:
            merged: dict[D, None] = {}
            for node in found:
                held = cast("Held[D]", node.held)
                if len(held) >= DESTINATIONS_PER_WORK:
                    work.spend(len(held) // DESTINATIONS_PER_WORK)
                for destination in held:
                    merged[destination] = None
            destinations = tuple(merged)
        if len(destinations) <= CACHED_DESTINATIONS_MAX:
            if len(self._cache) >= CACHED_KEYS_MAX:
                self._cache.clear()
            self._cache[routing_key] = destinations, work.done - done_before
        return destinations

    def explain(self, routing_key: str, headers: Headers = None, work: Work | None = None) -> list[Match[D]]:
        found = (
            Match(destination, *_read_label(label, node.pattern))
            for node in self._walk(routing_key, work)
            for destination, held in cast("Held[D]", node.held).items()
            for label in labels(held)
        )
        return counted(found, work)

    def _walk(self, routing_key: str, work: Work | None) -> list[_Node[D]]:
        """The nodes that hold the destinations of a key."""
        reached: list[_Node[D]] = [self._root]
        resting: dict[_Node[D], None] = {}
        _rest(self._root.many, resting)
        for word in _words(routing_key):
            if work is not None:
                work.spend(len(reached) + len(resting))
            following: list[_Node[D]] = []
            for nodes in (reached, resting) if resting else (reached,):
                for node in nodes:
                    if node.words is not None and (child := node.words.get(word)) is not None:
                        following.append(child)
                    if node.one is not None:
                        following.append(node.one)
            # Only now, for a node that comes to rest at this word must not take this word too.
            for node in following:
                if node.many is not None:
                    _rest(node.many, resting)
            reached = following
            if not reached and not resting:
                break
        if work is not None:
            work.spend(len(reached) + len(resting))
        return [node for node in (*reached, *resting) if node.held is not None]


def _rest(many: _Node[D] | None, resting: dict[_Node[D], None]) -> None:
    """Let a `#` node rest, and with it the `#` below it, for each may stand for no word at all."""
    while many is not None and many not in resting:
        resting[many] = None
        many = many.many


def _words(key: str) -> list[str]:
    return key.split(".") if key else []


def normal_form(key: str) -> str:
    """The pattern as the trie holds it: of wildcards in a row the stars first, then one hash if there was any."""
    if "#" not in key:
        return key
    words: list[str] = []
    is_open = False
    for word in _words(key):
        if word == "#":
            is_open = True
            continue
        if is_open and word != "*":
            words.append("#")
            is_open = False
        words.append(word)
    if is_open:
        words.append("#")
    return ".".join(words)


def count_hashes(key: str) -> int:
    """Of the pattern as the trie holds it."""
    return _words(normal_form(key)).count("#")


def _label(key: str, pattern: str, arguments: Arguments) -> Label:
    return arguments if key == pattern else _Spelled(key, arguments)


def _read_label(label: Label, pattern: str) -> tuple[str, Arguments]:
    if isinstance(label, _Spelled):
        return label.key, label.arguments
    return pattern, cast("Arguments", label)
