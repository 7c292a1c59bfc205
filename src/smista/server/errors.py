"""What can go wrong before a server is up.

BrokerError
├── InvalidConfiguration    a flag, a variable or the configuration file says what the server cannot do
└── CannotListen            the address or port is taken, or not this machine's
"""

from __future__ import annotations

from typing import ClassVar

from smista.errors import BrokerError


class InvalidConfiguration(BrokerError):
    code: ClassVar[str] = "invalid_configuration"


class CannotListen(BrokerError):
    code: ClassVar[str] = "cannot_listen"
