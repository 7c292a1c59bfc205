"""What the protocols that are spoken over HTTP have in common."""
