"""What `python -m smista` does."""

print("nothing to serve yet: the broker is a library for now, see README.md")
