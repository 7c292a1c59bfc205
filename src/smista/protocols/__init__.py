"""The doors: what clients speak. One folder each; all of them call the engine's `Broker` and nothing below it."""
