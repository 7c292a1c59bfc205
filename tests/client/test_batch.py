"""What travels in one request, and in which form."""

import msgspec

from smista.client.batch import Batch, raw_message
from smista.client.publication import Publication
from smista.client.wire import encode


def sent(batch: Batch, *, brief: bool = False) -> dict[str, object]:
    """The request as the broker reads it."""
    payload: dict[str, object] = msgspec.msgpack.decode(encode(batch.payload("q", brief=brief)))
    return payload


def test_bodies_of_one_content_type_travel_as_bodies() -> None:
    batch = Batch("text/plain")
    assert [batch.add_body(body, "text/plain") for body in (b"1", b"2")] == [0, 1]
    assert sent(batch) == {"queue": "q", "bodies": [b"1", b"2"], "content_type": "text/plain"}


def test_with_another_among_them_all_travel_as_whole_messages_in_their_places() -> None:
    batch = Batch("text/plain")
    places = [
        batch.add_body(b"1", "text/plain"),
        batch.add_body(b"2", None),
        batch.add_message(raw_message(Publication(b"3", priority=1)), has_own_id=False),
        batch.add_body(b"4", "text/plain"),
    ]
    assert places == [0, 1, 2, 3]
    assert batch.count == 4
    assert sent(batch) == {
        "queue": "q",
        "messages": [
            {"body": b"1", "content_type": "text/plain"},
            {"body": b"2"},
            {"body": b"3", "priority": 1},
            {"body": b"4", "content_type": "text/plain"},
        ],
    }


def test_of_messages_with_ids_of_their_own_each_result_is_wanted() -> None:
    batch = Batch()
    batch.add_message(raw_message(Publication(b"1", priority=1)), has_own_id=False)
    assert sent(batch, brief=True)["brief"] is True
    place = batch.add_message(raw_message(Publication(b"2", deduplication_id="two")), has_own_id=True)
    assert batch.own_ids == {place}
    assert "brief" not in sent(batch, brief=True)
