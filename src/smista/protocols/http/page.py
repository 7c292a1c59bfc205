"""A page that shows `/openapi.json` to people: self-contained, so that it works without the internet."""

from importlib import resources

PAGE = resources.files(__package__).joinpath("page.html").read_bytes()
