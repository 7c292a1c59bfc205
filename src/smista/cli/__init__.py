"""The command line: `smista serve`, `smista put`, ... See docs/cli.md."""
