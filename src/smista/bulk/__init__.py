"""The log in bulk: what happened to messages, as Arrow, for Spark and whoever else reads millions of rows.

columns    what a row is: its columns, their types, the kinds of rows
decoder    blocks to rows; which columns a record fills stands in `smista.records`
entries    the messages among them that entered
batch      rows to Arrow batches
plans      how to share out a range of the log
names      which number is which queue
process    the process that does all of this, beside the broker
frames     how broker and process speak to each other
reader     the broker's side: starts the process, hands connections over to it

pyarrow and numpy are imported by that process alone, never by the broker's.
"""
