"""What a channel of AMQP does to the broker: see `channel`."""
