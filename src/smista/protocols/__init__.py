"""The protocols that clients speak, a folder each. They reach the broker through `smista.service` alone."""
