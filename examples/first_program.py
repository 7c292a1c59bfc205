from smista import Client

with Client() as client:
    client.declare_queue("orders")
    client.publish("orders", {"dish": "pizza", "count": 2})
    for delivery in client.receive("orders", wait_ms=1_000):
        with delivery:
            print(delivery.json(), "- delivery", delivery.delivery_count)
