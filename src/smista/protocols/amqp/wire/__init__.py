"""AMQP 0-9-1 without I/O: bytes to events, events to bytes. It knows no socket, no loop, no clock and no broker.

values, methods, content, frames    bytes <-> values
scanner, patterns, channel          frames in, one by one or many alike at a time
handshake, connection               what may come when, and what is answered
"""
