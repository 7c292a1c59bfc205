"""What stands around the broker when it runs as a process: settings, logs, the HTTP server, start and stop."""
