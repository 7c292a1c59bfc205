"""HTTP/1.1 and WebSocket as they are on the wire. What is asked for is the application's business, in `protocols`.

    socket ─▶ gathering, intake ─▶ connection ─▶ requests: bytes ─▶ events          no I/O
                                       │
                                   exchange ─▶ the application: ASGI's scope, receive, send
                                       │
    socket ◀─ gathering ◀───────── connection ◀─ responses: events ─▶ bytes         no I/O

    after a handshake              websocket_connection ◀─▶ websocket: bytes ◀─▶ events    no I/O

Of ASGI there is what our applications read: in a scope `type`, `http_version`, `scheme`, `client`, `method`, `path`,
`raw_path`, `query_string`, `headers`, and for a WebSocket `subprotocols`. Names of headers are in lower case, in what
applications write too.
"""
