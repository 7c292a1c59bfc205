"""What stands around the broker when it runs as a process: settings, logs, the limits of each door, start and stop."""
