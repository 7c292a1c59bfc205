"""Properties that fit a form mean the same as those it was learned from: whoever reads them finds no difference in what
publishing looks at, and nothing wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from smista.protocols.amqp.channel.prepared import MEANT_HEADERS, Prepared, prepare
from smista.protocols.amqp.wire.content import BasicProperties, write_properties
from smista.protocols.amqp.wire.forms import Form
from smista.protocols.amqp.wire.values import LongInteger, Octets, Timestamp

texts = st.text("ab\N{SNOWMAN}", max_size=4)
values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 1 << 40)
    | st.floats(allow_nan=False)
    | st.decimals(-9, 9, places=1)
    | texts
    | texts.map(lambda text: Octets(text.encode()))
    | st.integers(0, 9).map(Timestamp)
    | st.integers(0, 9).map(LongInteger),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
names = texts | st.sampled_from(sorted(MEANT_HEADERS - {"CC", "BCC"}))
headers = st.dictionaries(names, values, max_size=4) | st.fixed_dictionaries(
    {},
    optional={
        "CC": st.lists(texts, max_size=2),
        "BCC": st.lists(texts, max_size=2),
        "x-group": texts,
        "x-deduplication-header": texts,
        "x-delay": st.integers(0, 3),
        "id": texts,
    },
)
properties = st.builds(
    BasicProperties,
    content_type=st.none() | texts,
    content_encoding=st.none() | texts,
    headers=st.none() | headers,
    delivery_mode=st.none() | st.integers(1, 2),
    priority=st.none() | st.integers(0, 9),
    correlation_id=st.none() | texts,
    reply_to=st.none() | texts,
    expiration=st.none() | st.sampled_from(["1", "2", "60"]),
    message_id=st.none() | texts,
    timestamp=st.none() | st.integers(0, 9),
    type=st.none() | texts,
    user_id=st.none() | st.just("guest"),
    app_id=st.none() | texts,
    cluster_id=st.none() | texts,
).map(write_properties)


def looked_at(raw: bytes) -> Prepared:
    return prepare("", "q", raw, "guest", None, None, keeps_headers=True)


def meaning(prepared: Prepared) -> tuple[object, ...]:
    return prepared.terms.like, prepared.extra_keys, prepared.is_changed, (prepared.headers or {}).keys()


def changed(raw: bytes) -> Iterator[bytes]:
    """The same, but for one byte: each of them in turn, a little and much."""
    for place, byte in enumerate(raw):
        for other in (byte ^ 1, byte + 1 & 0xFF, byte ^ 0xFF):
            yield raw[:place] + bytes((other,)) + raw[place + 1 :]


@settings(max_examples=200, deadline=None)
@given(properties)
def test_what_fits_means_the_same(raw: bytes) -> None:
    prepared = looked_at(raw)
    form = Form(raw, MEANT_HEADERS)
    several = [raw, *changed(raw)]
    fitting = [form.fits(one) for one in several]
    assert fitting[0]
    assert form.count_fitting(several) == (fitting.index(False) if False in fitting else len(several))
    for one, fits in zip(several, fitting, strict=True):
        if fits:
            assert meaning(looked_at(one)) == meaning(prepared)


@settings(max_examples=100, deadline=None)
@given(properties, properties)
@example(b"\x00\x00", b"\x10\x00\x01")
def test_an_exact_form_fits_its_own_bytes_alone(raw: bytes, other: bytes) -> None:
    form = Form(raw, None)
    assert form.fits(other) == (other == raw)


@settings(max_examples=100, deadline=None)
@given(st.data(), properties)
def test_whoever_is_cut_short_does_not_fit(data: st.DataObject, raw: bytes) -> None:
    assert not Form(raw, MEANT_HEADERS).fits(raw[: data.draw(st.integers(0, len(raw) - 1))])


def test_what_programs_send_differs_where_nobody_looks() -> None:
    """Or all of this would say nothing."""

    def message(number: int, **more: Any) -> bytes:
        return write_properties(
            BasicProperties(
                content_type="application/json",
                headers={"task": "add", "id": f"{number:036}", "retries": number, "at": 0.5 * number, **more},
                delivery_mode=2,
                correlation_id=f"{number:036}",
                message_id=f"{number:036}",
                timestamp=number,
            )
        )

    form = Form(message(1), MEANT_HEADERS)
    assert form.count_fitting([message(number) for number in range(100)]) == 100
    grouped = Form(message(1, **{"x-group": "a"}), MEANT_HEADERS)
    assert grouped.fits(message(2, **{"x-group": "a"}))
    assert not grouped.fits(message(2, **{"x-group": "b"}))
