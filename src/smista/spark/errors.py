"""What can go wrong between Spark and the broker.

    BrokerError
    └── SparkError
        ├── JavaNotFound        no Java that Spark can run on
        ├── WrongOption         an option of the data source is unknown, or its value is
        ├── WrongColumns        a schema that was asked for, or rows to publish, do not fit
        ├── BrokerUnreachable   nobody answers at the endpoint, or the answer broke off again and again
        ├── BrokerRefused       the broker's own error; `code` is the broker's
        ├── LogPositionLost     the log no longer has what the query has yet to read
        ├── CheckpointForeign   the checkpoint was made by a query of another queue, consumer or broker
        └── ClaimLost           a claim ran out before its batch was done; its messages come again

They are raised in Python processes that Spark starts, so a program sees their sentences inside Spark's exceptions.
"""

from __future__ import annotations

from typing import ClassVar

from smista.errors import BrokerError


class SparkError(BrokerError):
    code: ClassVar[str] = "spark_error"


class JavaNotFound(SparkError):
    code: ClassVar[str] = "java_not_found"


class WrongOption(SparkError):
    code: ClassVar[str] = "wrong_option"


class WrongColumns(SparkError):
    code: ClassVar[str] = "wrong_columns"


class BrokerUnreachable(SparkError):
    code: ClassVar[str] = "broker_unreachable"


class BrokerRefused(SparkError):
    code: ClassVar[str] = "broker_refused"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        # Each error has its code in its class; here it is known only now.
        self.__dict__["code"] = code


class LogPositionLost(SparkError):
    code: ClassVar[str] = "log_position_lost"


class CheckpointForeign(SparkError):
    code: ClassVar[str] = "checkpoint_foreign"


class ClaimLost(SparkError):
    code: ClassVar[str] = "claim_lost"
