"""`python -m smista.bulk`: started by the broker, see `reader`."""

from smista.bulk.process import main

if __name__ == "__main__":
    main()
