"""AMQP 0-9-1 with RabbitMQ's extensions: its clients, unchanged.

values.py, methods.py, content.py, frames.py     bytes <-> values, no I/O
connection.py, channel.py and their parts         one client: what it may do when, and what that does to the broker
"""
