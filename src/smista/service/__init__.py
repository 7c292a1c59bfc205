"""The one way in, for every protocol.

    service = Service(broker)
    session = service.session(principal, namespace)
    await session.run(PurgeQueue("orders"))
    await session.publish("orders", [Publication(b"...")])

`command.py` says what a command is, `commands/` has them all, `session.py` is what a caller works with. A protocol sees
this package and nothing below it; the values that it is handed and gives are named in `values.py`.
"""
