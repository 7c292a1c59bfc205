"""HTTP: commands, REST and the stream, over HTTP and WebSocket."""
