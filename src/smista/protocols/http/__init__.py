"""The native door: commands, REST and the stream, over HTTP and WebSocket."""
