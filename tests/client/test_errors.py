import inspect
from types import ModuleType

import pytest

from smista import errors as broker_errors
from smista.client.errors import ServerError, error_from
from smista.core import errors as core_errors
from smista.core.errors import ExchangeNotFound, LeaseExpired, StaleReceipt
from smista.errors import BrokerError


@pytest.mark.parametrize("module", [core_errors, broker_errors], ids=lambda module: module.__name__)
def test_every_error_of_the_broker_comes_back_as_its_own_class(module: ModuleType) -> None:
    kinds = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if issubclass(kind, BrokerError)]
    kinds.remove(BrokerError)
    assert kinds
    for kind in kinds:
        error = error_from(kind.code, "What happened.")
        assert type(error) is kind
        assert str(error) == "What happened."


def test_an_error_whose_constructor_makes_the_sentence_keeps_the_one_that_travelled() -> None:
    error = error_from("exchange_not_found", "No such exchange.")
    assert isinstance(error, ExchangeNotFound)
    assert (str(error), error.args) == ("No such exchange.", ("No such exchange.",))


def test_a_lease_that_expired_is_also_a_stale_receipt() -> None:
    assert isinstance(error_from("ack_deadline_exceeded", "Too late."), StaleReceipt)
    assert type(error_from("ack_deadline_exceeded", "Too late.")) is LeaseExpired


def test_an_unknown_code_is_kept() -> None:
    error = error_from("quota_exceeded", "Too much.")
    assert isinstance(error, ServerError)
    assert (error.code, str(error)) == ("quota_exceeded", "Too much.")
    assert ServerError.code == "server_error"
