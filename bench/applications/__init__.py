"""Real programs on a broker, unmodified clients and all: Celery, pika, aio-pika; each beside RabbitMQ, by turns."""
