"""The rules of the broker, pure: no clock, no randomness, no I/O. Time and chance come in as arguments."""
