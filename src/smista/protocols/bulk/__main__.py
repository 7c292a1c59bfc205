"""`python -m smista.protocols.bulk`: started by the broker, see `reader`."""

from smista.protocols.bulk.process import main

if __name__ == "__main__":
    main()
