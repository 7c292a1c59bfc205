from smista.client import AsyncClient as AsyncClient
from smista.client import Client as Client
from smista.client import Delivery as Delivery
from smista.client import Publication as Publication
from smista.client import Worker as Worker

__version__: str
