"""AMQP 0-9-1 with RabbitMQ's extensions: its clients, unchanged.

                     server     makes an adapter for each connection
                        │
      socket ─────── adapter    what the loop calls; beside it `output`, `progress`, `times`, `waiting`
                    │       │
    wire.connection │    handler ─▶ channel/   what methods do, a room for each subject
    bytes <-> events│       │          │
                    └── client ◀──────┘        what the client has at the broker, and how it lets go of it
                            │
                   Service and Session         all that is known of the broker

`wire` knows neither a loop nor a broker; nothing imports what stands above it. See the docstrings of `wire.connection`
and of `channel.channel`.
"""
