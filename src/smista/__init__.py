"""Smista: a durable message-queue broker.

    from smista import Client, AsyncClient, Publication, Worker
    from smista import QueueNotFound, LowDisk, ConnectionLost

Every error can be imported from here; their tree is drawn in `smista.errors`, and docs/errors.md explains each. A name
is imported when it is first used, so that `import smista` costs nothing; the types are in `__init__.pyi`.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    "smista.client": "AsyncClient Client Delivery Publication Worker",
    "smista.errors": (
        "BrokerError BrokerClosed BrokerStopped OutcomeUnknown ResourceLow LowDisk LowMemory AccessDenied RequestError "
        "InvalidRequest UnknownCommand PathNotFound MethodNotAllowed UpgradeRequired RequestTooLarge "
        "UnsupportedMediaType HostNotAllowed OriginNotAllowed ArrowMissing StageNotFound StageBusy StageDamaged "
        "RequestCancelled TooManyRequests LogInMemory BulkReaderFailed TooManyReaders LogPositionDropped "
        "InvalidArgument InvalidName InvalidPriority InvalidSettings InvalidReceipt MessageTooLarge QueueNotFound "
        "QueueDiffers QueueFull QueueNotEmpty QueueInUse QueueDeleted QueueInExclusiveUse DeadLetterCycle "
        "PolicyNotFound MessageNotFound StaleReceipt LeaseExpired ConsumerNotFound ConsumerInUse ClaimNotFound "
        "ClaimExpired ClaimBroken NamespaceNotFound RedriveNotFound RedriveRunning RedriveEnded"
    ),
    "smista.exchange_errors": (
        "ExchangeNotFound InvalidExchange ExchangeDiffers ExchangeReserved ExchangeInternal ExchangeInUse "
        "ExchangeCycle ReachTooWide BindingTargetNotFound InvalidBinding"
    ),
    "smista.client.errors": (
        "ClientError ConnectionFailed ConnectionLost ClientClosed WorkerNotFound InternalError ServerError"
    ),
    "smista.log.errors": (
        "LogError LogDamaged LogUnreadable LogForeign LogNewer LogLocked LogFull LogFailed LogDropped LogFenced "
        "LogClosed"
    ),
    "smista.records.errors": "RecordError",
    "smista.server.errors": "InvalidConfiguration CannotListen",
    "smista.spark.errors": (
        "SparkError JavaNotFound WrongOption WrongColumns BrokerUnreachable BrokerRefused LogPositionLost "
        "CheckpointForeign ClaimLost"
    ),
    "smista.spark.pipelines.errors": "PipelineError ArchiveDamaged ArchiveDiffers FolderInUse PipelineFailed",
}
"""The names that can be imported from here, by the module that defines them."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
