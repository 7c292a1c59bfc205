"""The class tx: a mode of a channel."""

from __future__ import annotations

from smista.protocols.amqp.wire.methods.method import Method, method


@method(90, 10)
class TxSelect(Method):
    pass


@method(90, 11)
class TxSelectOk(Method):
    pass


@method(90, 20)
class TxCommit(Method):
    pass


@method(90, 21)
class TxCommitOk(Method):
    pass


@method(90, 30)
class TxRollback(Method):
    pass


@method(90, 31)
class TxRollbackOk(Method):
    pass
