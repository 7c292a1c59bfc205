"""A topology driven at random, beside a plain model of it."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings, Removed, Topology
from smista.exchange_errors import BindingTargetNotFound, ExchangeCycle, ExchangeDiffers, ExchangeNotFound
from tests.core.exchanges.kept import is_empty


def every_queue(_name: str) -> bool:
    return True


NAMES = "abcd"
QUEUES = "pqr"
some_name = st.sampled_from(NAMES)
some_binding = st.builds(
    lambda source, to_queue, queue, exchange, key: (
        Binding.to_queue(source, queue, key) if to_queue else Binding.to_exchange(source, exchange, key)
    ),
    some_name,
    st.booleans(),
    st.sampled_from(QUEUES),
    some_name,
    st.sampled_from(["", "k", "k.#"]),
)
some_settings = st.builds(
    ExchangeSettings,
    st.sampled_from(ExchangeKind),
    auto_delete=st.booleans(),
    alternate=st.none() | some_name,
)


class TopologyMachine(RuleBasedStateMachine):
    """Does what an engine does: check, then change, then delete what is unused."""

    def __init__(self) -> None:
        super().__init__()
        self.topology = Topology("shop")
        self.exchanges: dict[str, ExchangeSettings] = {}
        self.bindings: set[Binding] = set()

    @rule(name=some_name, settings=some_settings)
    def declare(self, name: str, settings: ExchangeSettings) -> None:
        try:
            if self.topology.check_declare(name, settings) is not None:
                assert self.exchanges[name] == settings
                return
        except (ExchangeDiffers, ExchangeCycle):
            assert self.exchanges.get(name, settings) != settings or self.goes_round(name, settings.alternate)
            return
        assert not self.goes_round(name, settings.alternate)
        self.topology.declare(name, 1, settings)
        self.exchanges[name] = settings

    @rule(binding=some_binding)
    def bind(self, binding: Binding) -> None:
        try:
            is_new = self.topology.check_bind(binding, every_queue)
        except (ExchangeNotFound, BindingTargetNotFound):
            ends = {binding.source} | ({binding.destination} if binding.destination_kind == "exchange" else set())
            assert not ends <= self.exchanges.keys()
        except ExchangeCycle:
            assert self.goes_round(binding.source, binding.destination)
        else:
            if binding.destination_kind == "exchange":
                assert not self.goes_round(binding.source, binding.destination)
            assert is_new is (binding not in self.bindings)
            self.topology.bind(binding)
            self.bindings.add(binding)

    @precondition(lambda self: self.bindings)
    @rule(data=st.data())
    def unbind(self, data: st.DataObject) -> None:
        binding = data.draw(st.sampled_from(sorted(self.bindings, key=repr)))
        self.removed(self.topology.unbind(binding), {binding})

    @rule(queue=st.sampled_from(QUEUES))
    def delete_queue(self, queue: str) -> None:
        self.removed(self.topology.remove_queue(queue), {each for each in self.bindings if each.target == queue})

    @precondition(lambda self: self.exchanges)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.delete_exchange(data.draw(st.sampled_from(sorted(self.exchanges))))

    def delete_exchange(self, name: str) -> None:
        del self.exchanges[name]
        self.removed(self.topology.delete(name), {each for each in self.bindings if name in self.ends(each)})

    def removed(self, removed: Removed, expected: set[Binding]) -> None:
        assert set(removed.bindings) == expected
        assert len(removed.bindings) == len(expected)
        self.bindings -= expected
        left = {each.source for each in self.bindings}
        unused = {
            each.source
            for each in expected
            if each.source in self.exchanges and self.exchanges[each.source].auto_delete and each.source not in left
        }
        assert set(removed.unused) == unused
        assert len(removed.unused) == len(unused)
        for name in removed.unused:
            if name in self.exchanges:
                self.delete_exchange(name)

    def ends(self, binding: Binding) -> set[str]:
        return {binding.source} | ({binding.destination} if binding.destination_kind == "exchange" else set())

    def goes_round(self, source: str, destination: str | None) -> bool:
        reached = {destination} - {None}
        while True:
            further = {
                each.destination
                for each in self.bindings
                if each.source in reached and each.destination_kind == "exchange"
            } | {
                settings.alternate
                for name, settings in self.exchanges.items()
                if name in reached and settings.alternate is not None
            }
            if further <= reached:
                return source in reached
            reached |= further

    @invariant()
    def the_topology_is_what_was_done(self) -> None:
        assert set(self.topology.bindings()) == self.bindings
        for name in NAMES:
            found = self.topology.find(name)
            assert (found is not None) is (name in self.exchanges)
            to_name = {
                each for each in self.bindings if each.destination_kind == "exchange" and each.destination == name
            }
            assert set(self.topology.bindings_of_exchange(name)) == to_name
            if found is not None:
                assert is_empty(found.matcher) is not bool(found.bindings)
        for queue in QUEUES:
            assert set(self.topology.bindings_of_queue(queue)) == {
                each for each in self.bindings if each.target == queue
            }


TestTopologyMachine = TopologyMachine.TestCase
TestTopologyMachine.settings = settings(deadline=None, stateful_step_count=30, max_examples=50)
