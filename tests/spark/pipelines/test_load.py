"""Rows of any file or table become messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from smista import Client
from smista.spark.errors import WrongOption
from smista.spark.pipelines.errors import PipelineFailed
from smista.spark.pipelines.load import load
from smista.spark.pipelines.run import Run
from tests.spark.pipelines.conftest import bodies


def test_rows_are_loaded_as_json_or_as_what_an_expression_makes_of_them(
    client: Client, queue: str, at_broker: Run, tmp_path: Path
) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("id,dish\n1,pizza\n2,pasta\n3,soup\n")
    header = ["header=true", "inferSchema=true"]
    assert load(at_broker, place=str(file), to=queue, option=header, where="id < 3", name=queue).facts["rows"] == 2
    assert sorted(bodies(client, queue)) == ['{"id":1,"dish":"pizza"}', '{"id":2,"dish":"pasta"}']
    load(at_broker, place=str(file), to=queue, option=header, where="id < 3", name=queue)
    assert client.stats(queue).ready == 2  # once under that name
    client.purge(queue)
    given = ["id=concat('o', id)", "headers=map('dish', dish)", "priority=id"]
    load(at_broker, place=str(file), to=queue, option=header, body="dish", given=given)
    soup, pasta, pizza = client.peek(queue, 3)
    assert (soup.text(), soup.headers, soup.priority) == ("soup", {"dish": "soup"}, 3)
    assert (pasta.text(), pizza.text(), pizza.content_type) == ("pasta", "pizza", None)
    with pytest.raises(PipelineFailed, match="UNRESOLVED_COLUMN"):
        load(at_broker, place=str(file), to=queue, body="nonsense")
    with pytest.raises(PipelineFailed, match="PATH_NOT_FOUND"):
        load(at_broker, place=str(tmp_path / "none.csv"), to=queue)
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 and no more PAR1")
    with pytest.raises(PipelineFailed, match=r"damaged\.parquet cannot be read: .* Restore it, or leave it out"):
        load(at_broker, place=str(damaged), to=queue)
    with pytest.raises(WrongOption, match="no queue 'nowhere'"):
        load(at_broker, place=str(file), to="nowhere")
    assert len(client.peek(queue, 10)) == 3


def test_with_a_checkpoint_every_file_is_loaded_once(
    client: Client, queue: str, at_broker: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "lines"
    folder.mkdir()
    following: dict[str, Any] = {
        "place": str(folder), "form": "text", "to": queue, "body": "value", "checkpoint": str(tmp_path / "checkpoint"),
    }  # fmt: skip
    (folder / "a.txt").write_text("one\ntwo\n")
    assert load(at_broker, **following).facts["rows"] == 2
    (folder / "b.txt").write_text("three\n")
    assert load(at_broker, **following).facts["rows"] == 1
    assert load(at_broker, **following).facts["rows"] == 0
    assert sorted(bodies(client, queue)) == ["one", "three", "two"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"place": "a.csv"}, "Say where to"),
        ({"place": "a", "to": "q"}, "does not follow from its name"),
        ({"place": "a", "form": "xml", "to": "q"}, "--format xml is none of parquet"),
        ({"place": "a.csv", "to": "q", "given": ["colour=red"]}, "A message has no colour; --set knows id"),
        ({"place": "a.csv", "to": "q", "option": ["header"]}, "is not NAME=VALUE"),
        ({"place": "a", "form": "table", "to": "q", "checkpoint": "c"}, "A table cannot be followed"),
        ({"place": "a.csv", "to": "q", "name": "n", "checkpoint": "c"}, "--name is for loading all at once"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_wrong_options_are_answered_before_spark_is_started(options: dict[str, Any], said: str) -> None:
    with pytest.raises(WrongOption, match=said):
        load(Run(), **options)
    with pytest.raises(WrongOption, match="--checkpoint FOLDER has to name"):
        load(Run(interval_ms=1), place="a.csv", to="q")
